/* The floor: how late an idle loop of clock_nanosleep wakes on this machine now.
 *   bare_loop RATE SECONDS     prints "p50 p99 max" in ns */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int compare(const void *a, const void *b) {
  long long x = *(const long long *)a, y = *(const long long *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  long long gap = 1000000000LL / atoll(argv[1]), count = atoll(argv[1]) * atoll(argv[2]);
  long long *late = malloc(count * sizeof *late);
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  long long due = t.tv_sec * 1000000000LL + t.tv_nsec + 1000000;
  for (long long i = 0; i < count; i++, due += gap) {
    struct timespec wake = {due / 1000000000LL, due % 1000000000LL};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL);
    clock_gettime(CLOCK_MONOTONIC, &t);
    late[i] = t.tv_sec * 1000000000LL + t.tv_nsec - due;
  }
  qsort(late, count, sizeof *late, compare);
  printf("%lld %lld %lld\n", late[count / 2], late[count * 99 / 100], late[count - 1]);
  return argc < 3;
}
