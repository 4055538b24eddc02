/* A V2 server that does nothing, as fast as one core allows: the generator's measuring stick.
 *
 *   null_server PORT [STALL_AFTER_MS STALL_MS]
 *
 * It answers GET /v2, /v2/health/..., /v2/models/null (with or without /ready) and POST /v2/repository/index, and every
 * POST .../infer with one fixed FP32 output of 1000 values, once the whole body has come. STALL_AFTER_MS after the first
 * inference request it does nothing at all for STALL_MS, once. The first line of standard output is `ready PORT`.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_FD 65536
#define HEAD 8192
#define VALUES 1000
#ifndef INPUT
#define INPUT "[-1,1000]" /* 4 KB a request; -DINPUT=... makes another size */
#endif

struct connection {
  char head[HEAD]; /* the request's head, and what came with it */
  size_t have;
  size_t body_left;
  int in_body;
  int infer;
};

static struct connection *connections[MAX_FD];
static char infer_reply[HEAD + VALUES * 4];
static size_t infer_length;
static long long stall_at = -1, stall_after, stall_for;

static long long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static void make_infer_reply(void) {
  char json[512];
  int json_length = snprintf(json, sizeof json,
      "{\"model_name\":\"null\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"output\",\"datatype\":\"FP32\","
      "\"shape\":[1,%d],\"parameters\":{\"binary_data_size\":%d}}]}", VALUES, VALUES * 4);
  int head = snprintf(infer_reply, HEAD,
      "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
      "Server-Timing: queue;dur=0.001, pool;dur=0.002, load;dur=0, input;dur=0.003, infer;dur=0.004, output;dur=0.005\r\n"
      "Content-Length: %d\r\n\r\n%s", json_length, json_length + VALUES * 4, json);
  infer_length = head + VALUES * 4; /* the values are zeros */
}

static void reply_all(int fd, const char *data, size_t length) {
  while (length) {
    ssize_t n = send(fd, data, length, MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EAGAIN) { usleep(50); continue; }
      return;
    }
    data += n;
    length -= n;
  }
}

static void reply_json(int fd, const char *status, const char *json) {
  char buffer[1024];
  int n = snprintf(buffer, sizeof buffer, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                   status, strlen(json), json);
  reply_all(fd, buffer, n);
}

static void answer(int fd, struct connection *c) {
  if (c->infer) {
    if (stall_for) {
      long long now = now_ms();
      if (stall_at < 0) stall_at = now + stall_after;
      if (now >= stall_at) {
        usleep(stall_for * 1000);
        stall_for = 0;
      }
    }
    reply_all(fd, infer_reply, infer_length);
  } else if (!strncmp(c->head, "GET /v2 ", 8)) {
    reply_json(fd, "200 OK", "{\"name\":\"null\",\"version\":\"1\",\"extensions\":[\"binary_tensor_data\"]}");
  } else if (!strncmp(c->head, "POST /v2/repository/index ", 26)) {
    reply_json(fd, "200 OK", "[{\"name\":\"null\",\"state\":\"READY\"}]");
  } else if (!strncmp(c->head, "GET /v2/models/null ", 20)) {
    reply_json(fd, "200 OK",
        "{\"name\":\"null\",\"platform\":\"null\",\"inputs\":[{\"name\":\"input\",\"datatype\":\"FP32\",\"shape\":" INPUT "}],"
        "\"outputs\":[{\"name\":\"output\",\"datatype\":\"FP32\",\"shape\":[-1,1000]}]}");
  } else if (!strncmp(c->head, "GET /v2/health/", 15) || !strncmp(c->head, "GET /v2/models/null/ready", 25)) {
    reply_json(fd, "200 OK", "{}");
  } else {
    reply_json(fd, "404 Not Found", "{\"error\":\"nothing here\"}");
  }
}

static void drop(int fd) {
  close(fd);
  free(connections[fd]);
  connections[fd] = NULL;
}

static void readable(int fd) {
  static char body[1 << 18];
  struct connection *c = connections[fd];
  for (;;) {
    if (c->in_body) {
      size_t want = c->body_left < sizeof body ? c->body_left : sizeof body;
      ssize_t n = want ? recv(fd, body, want, 0) : 0;
      if (want && n <= 0) {
        if (n == 0 || errno != EAGAIN) drop(fd);
        return;
      }
      c->body_left -= n;
      if (c->body_left) continue;
      c->in_body = 0;
      answer(fd, c);
    }
    char *end = memmem(c->head, c->have, "\r\n\r\n", 4);
    if (!end) {
      if (c->have >= HEAD - 1) { drop(fd); return; }
      ssize_t n = recv(fd, c->head + c->have, HEAD - 1 - c->have, 0);
      if (n <= 0) {
        if (n == 0 || errno != EAGAIN) drop(fd);
        return;
      }
      c->have += n;
      c->head[c->have] = 0;
      continue;
    }
    size_t head_length = end + 4 - c->head, length = 0;
    *end = 0;
    char *field = strcasestr(c->head, "\r\ncontent-length:");
    if (field) length = strtoul(field + 17, NULL, 10);
    c->infer = !strncmp(c->head, "POST ", 5) && strstr(c->head, "/infer ") != NULL;
    size_t extra = c->have - head_length, taken = extra < length ? extra : length;
    c->body_left = length - taken;
    c->in_body = 1;
    if (!c->body_left) { /* whole already: answer while the head is still there */
      c->in_body = 0;
      answer(fd, c);
    }
    c->have = extra - taken;
    if (c->have) memmove(c->head, c->head + head_length + taken, c->have);
  }
}

int main(int argc, char **argv) {
  int port = argc > 1 ? atoi(argv[1]) : 0, one = 1;
  if (argc > 3) { stall_after = atoll(argv[2]); stall_for = atoll(argv[3]); }
  struct rlimit files = {MAX_FD, MAX_FD};
  if (setrlimit(RLIMIT_NOFILE, &files)) {
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  make_infer_reply();
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 4096) ||
      getsockname(listener, (struct sockaddr *)&address, &size)) {
    perror("null_server");
    return 1;
  }
  printf("ready %d\n", ntohs(address.sin_port));
  fflush(stdout);
  int loop = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[256];
  epoll_ctl(loop, EPOLL_CTL_ADD, listener, &event);
  for (;;) {
    int count = epoll_wait(loop, events, 256, -1);
    for (int i = 0; i < count; i++) {
      int fd = events[i].data.fd;
      if (fd != listener) { readable(fd); continue; }
      while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        if (fd >= MAX_FD) { close(fd); continue; }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        connections[fd] = calloc(1, sizeof(struct connection));
        event.events = EPOLLIN;
        event.data.fd = fd;
        epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event);
      }
    }
  }
}
