/* delay: a TCP proxy that holds back every byte for some microseconds, in both directions.
 *
 *   delay DELAY_US LISTEN_ADDRESS TARGET_ADDRESS PORT...
 *
 * For each port it listens at LISTEN_ADDRESS and connects to the same port of TARGET_ADDRESS.
 * Bytes leave in order, DELAY_US after they were received. While CHUNKS chunks of a direction are held
 * no more are received, so TCP limits the sender. One thread, epoll with a timer of nanoseconds. It
 * prints "ready" when it listens; on SIGTERM it prints how many bytes it passed, and ends. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 256 * 1024, CHUNKS = 256, LINKS_MAX = 64, PORTS_MAX = 8 };

typedef struct {
    uint64_t due_ns;
    int start, stop;
    char *bytes;
} chunk;

/* One direction of a connection: a ring of chunks. */
typedef struct link_ {
    int from, to, is_ended, wants_out;
    unsigned first, last;
    chunk ring[CHUNKS];
    struct link_ *other;
} link_;

typedef struct {
    int kind; /* 0: timer, 1: signal, 2: listening, 3: link */
    int fd, port;
    link_ *in, *out; /* received from this descriptor, sent to it */
} source;

static int poller, timer;
static uint64_t delay_ns, passed;
static link_ *links[LINKS_MAX];
static int link_count;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void watch(source *each, uint32_t events, int change) {
    struct epoll_event event = { .events = events, .data.ptr = each };
    if (epoll_ctl(poller, change, each->fd, &event)) fail("epoll_ctl");
}

static source *new_source(int kind, int fd) {
    source *made = calloc(1, sizeof *made);
    made->kind = kind;
    made->fd = fd;
    return made;
}

static struct sockaddr_in at(const char *host, int port) {
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) fail(host);
    return address;
}

static void set_options(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/* ---- connections ---- */

static link_ *new_link(int from, int to) {
    if (link_count == LINKS_MAX) { fprintf(stderr, "delay: too many connections\n"); exit(1); }
    link_ *made = calloc(1, sizeof *made);
    made->from = from;
    made->to = to;
    return links[link_count++] = made;
}

static void join(int client, const char *target, int port) {
    struct sockaddr_in address = at(target, port);
    int server = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(server, (void *)&address, sizeof address)) { close(server); close(client); return; }
    set_options(server);
    set_options(client);
    link_ *there = new_link(client, server), *back = new_link(server, client);
    there->other = back;
    back->other = there;
    source *one = new_source(3, client), *two = new_source(3, server);
    one->in = two->out = there;
    two->in = one->out = back;
    watch(one, EPOLLIN | EPOLLOUT | EPOLLET, EPOLL_CTL_ADD);
    watch(two, EPOLLIN | EPOLLOUT | EPOLLET, EPOLL_CTL_ADD);
}

static void receive(link_ *link) {
    while (!link->is_ended && link->last - link->first < CHUNKS) {
        chunk *each = &link->ring[link->last % CHUNKS];
        if (!each->bytes) each->bytes = malloc(CHUNK);
        ssize_t n = recv(link->from, each->bytes, CHUNK, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        each->due_ns = now_ns() + delay_ns;
        each->start = 0;
        each->stop = n > 0 ? n : 0; /* an empty chunk is the end */
        link->is_ended = n <= 0;
        link->last++;
    }
}

/* Send what is due; the descriptors stay open, only the end of the stream is passed on. */
static void pass(link_ *link, uint64_t now) {
    while (link->first != link->last) {
        chunk *each = &link->ring[link->first % CHUNKS];
        if (each->due_ns > now) return;
        if (each->stop == 0) shutdown(link->to, SHUT_WR);
        while (each->start < each->stop) {
            ssize_t n = send(link->to, each->bytes + each->start, each->stop - each->start, MSG_NOSIGNAL);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) { link->wants_out = 1; return; }
            if (n < 0) { each->start = each->stop; break; }
            each->start += n;
            passed += n;
        }
        link->wants_out = 0;
        link->first++;
        receive(link); /* it may have stopped at a full ring */
    }
}

static void set_timer(void) {
    uint64_t due = 0;
    for (int i = 0; i < link_count; i++) {
        link_ *link = links[i];
        if (link->first == link->last || link->wants_out) continue;
        uint64_t each = link->ring[link->first % CHUNKS].due_ns;
        if (!due || each < due) due = each;
    }
    struct itimerspec at_ = { .it_value = { due / 1000000000, due % 1000000000 } };
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &at_, NULL);
}

int main(int count, char **words) {
    if (count < 5 || count > 4 + PORTS_MAX) { fprintf(stderr, "usage: see delay.c\n"); return 2; }
    delay_ns = strtoull(words[1], NULL, 10) * 1000;
    poller = epoll_create1(0);
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigprocmask(SIG_BLOCK, &ending, NULL);
    watch(new_source(1, signalfd(-1, &ending, SFD_NONBLOCK)), EPOLLIN, EPOLL_CTL_ADD);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    watch(new_source(0, timer), EPOLLIN, EPOLL_CTL_ADD);
    for (int i = 4; i < count; i++) {
        source *each = new_source(2, socket(AF_INET, SOCK_STREAM, 0));
        int on = 1;
        each->port = atoi(words[i]);
        struct sockaddr_in address = at(words[2], each->port);
        setsockopt(each->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(each->fd, (void *)&address, sizeof address) || listen(each->fd, 16)) fail("listen");
        watch(each, EPOLLIN, EPOLL_CTL_ADD);
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct epoll_event events[64];
        int n = epoll_wait(poller, events, 64, -1);
        for (int i = 0; i < n; i++) {
            source *each = events[i].data.ptr;
            uint64_t expirations;
            if (each->kind == 0 && read(each->fd, &expirations, sizeof expirations) < 0) continue;
            if (each->kind == 1) { printf("%llu\n", (unsigned long long)passed); return 0; }
            if (each->kind == 2) {
                int client = accept(each->fd, NULL, NULL);
                if (client >= 0) join(client, words[3], each->port);
            }
            if (each->kind == 3 && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(each->in);
            if (each->kind == 3 && events[i].events & EPOLLOUT) each->out->wants_out = 0;
        }
        uint64_t now = now_ns();
        for (int i = 0; i < link_count; i++) pass(links[i], now);
        set_timer();
    }
}
