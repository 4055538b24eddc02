/* Stands in for the Python interpreter: starts the real one with the same arguments, passes its output on, and writes
 * to LOG how long it took from just before the start to the first byte of output, which reports the answer. */
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    int out[2], status = 0;
    const char *what = "resident";
    char buffer[65536];
    ssize_t count;
    double first = 0;
    pid_t child;
    posix_spawn_file_actions_t actions;

    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--level") == 0) what = argv[i + 1];
    if (pipe(out) != 0) return 111;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_addclose(&actions, out[0]);
    posix_spawn_file_actions_addclose(&actions, out[1]);
    argv[0] = PYTHON;
    double started = now();
    if (posix_spawn(&child, PYTHON, &actions, NULL, argv, environ) != 0) return 112;
    close(out[1]);
    while ((count = read(out[0], buffer, sizeof buffer)) > 0) {
        if (first == 0) first = now();
        for (ssize_t done = 0; done < count;) {
            ssize_t written = write(1, buffer + done, count - done);
            if (written <= 0) return 113;
            done += written;
        }
    }
    FILE *log = fopen(LOG, "a");
    if (log == NULL) return 114;
    fprintf(log, "%s %.9f\n", what, first - started);
    fclose(log);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 115;
}
