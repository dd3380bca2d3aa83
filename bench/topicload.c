/* topicload: what mqload does not do. Sends spread over many topics, and pulls with a filter.
 *
 * One thread, epoll, loopback only; prints one JSON line with the keys of mqload that matter here.
 * The frames are those of mqload: the header in JSON, the same properties, bodies of noise.
 *
 *   topicload send --topics 100 --prefix BenchMany --queues 8 --conns 64 --window 16 --size 1024
 *   topicload pull --prefix BenchTags --queues 8 --conns 4 --subscription t07
 *
 * With one topic its name is the prefix, with more the number of the topic follows it. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_OPAQUE = 1000000000, RECORD_MIN = 91, ERROR_CODES = 1024 };

static int is_send, port = 10911, topics = 1, queues = 8, conns = 1, window = 1, size = 1024, max = 32, pid;
static double warmup_s = 1, duration_s = 3;
static const char *prefix = "BenchMany", *subscription = "*";

/* ---- time and CPU ---- */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double own_cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static double server_cpu_s(void) {
    char path[64], text[2048];
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    char *after = strrchr(text, ')');
    if (!after || sscanf(after + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2) return 0;
    return (double)(user + system) / sysconf(_SC_CLK_TCK);
}

static double machine_cpu_s(void) {
    unsigned long v[7] = {0};
    FILE *file = fopen("/proc/stat", "r");
    if (!file) return 0;
    int n = fscanf(file, "cpu %lu %lu %lu %lu %lu %lu %lu", v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6);
    fclose(file);
    return n == 7 ? (double)(v[0] + v[1] + v[2] + v[5] + v[6]) / sysconf(_SC_CLK_TCK) : 0;
}

/* ---- latencies: 64 steps in each power of two ---- */

static uint64_t steps[64 * 64], step_count;

static void note_latency(uint64_t ns) {
    int exponent = ns < 64 ? 0 : 63 - __builtin_clzll(ns) - 5;
    steps[exponent * 64 + (exponent ? (ns >> exponent) : ns)]++;
    step_count++;
}

static double latency_us(double share) {
    uint64_t wanted = share * step_count, seen = 0;
    for (int i = 0; i < 64 * 64; i++)
        if ((seen += steps[i]) > wanted) return ((double)(i % 64) + 0.5) * (double)(1ull << (i / 64)) / 1000;
    return 0;
}

/* ---- frames ---- */

typedef struct { char *bytes; int length, opaque_at, key_at, unique_at, body_at; } frame;

static frame *frames; /* one for each queue of each topic, topics next to each other */
static uint64_t run_id, sequence;

static void put32(char *at, uint32_t value) { value = htonl(value); memcpy(at, &value, 4); }
static uint32_t get32(const char *at) { uint32_t value; memcpy(&value, at, 4); return ntohl(value); }
static void put_digits(char *at, int count, uint64_t value, int base) {
    while (count--) { at[count] = "0123456789ABCDEF"[value % base]; value /= base; }
}

static void name_topic(char *name, size_t room, int topic) {
    if (topics == 1) snprintf(name, room, "%s", prefix);
    else snprintf(name, room, "%s%04d", prefix, topic);
}

static frame make_send(int topic, int queue) {
    char header[2048], name[128];
    name_topic(name, sizeof name, topic);
    int length = snprintf(header, sizeof header,
        "{\"code\":310,\"extFields\":{\"a\":\"bench_group\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"%d\",\"e\":\"%d\",\"f\":\"0\","
        "\"g\":\"%llu\",\"h\":\"0\",\"i\":\"KEYS\\u0001k%016d\\u0002UNIQ_KEY\\u0001%016llX%016d\\u0002TAGS\\u0001TagA\\u0002\","
        "\"j\":\"0\",\"k\":\"false\",\"l\":\"0\",\"m\":\"false\",\"n\":\"broker-a\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%d,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":513}",
        name, queues, queue, (unsigned long long)time(NULL) * 1000, 0, (unsigned long long)run_id, 0, FIRST_OPAQUE);
    frame made = { malloc(8 + length + size), 8 + length + size, 0, 0, 0, 8 + length };
    if (!made.bytes) { perror("malloc"); exit(1); }
    put32(made.bytes, 4 + length + size);
    put32(made.bytes + 4, length);
    memcpy(made.bytes + 8, header, length);
    made.opaque_at = 8 + (int)(strstr(header, "\"opaque\":") + 9 - header);
    made.key_at = 8 + (int)(strstr(header, "\\u0001k") + 7 - header);
    made.unique_at = 8 + (int)(strstr(header, "UNIQ_KEY\\u0001") + 14 + 16 - header);
    uint64_t noise = 88172645463325252ull;
    for (int i = 0; i < size; i++) {
        noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
        made.bytes[made.body_at + i] = 32 + (noise >> 33) % 95;
    }
    return made;
}

/* ---- connections ---- */

typedef struct { uint64_t sent_ns; int64_t offset; } request;
typedef struct { int fd, queue, writes, out_length, out_done, out_room, in_length, in_room; char *out, *in; request *requests; } connection;

static int epoll_fd, measuring, in_flight, stopping;
static uint64_t turn, messages, answers, errors[ERROR_CODES], bad_frames;

static char *grow(char **buffer, int *room, int wanted) {
    if (wanted > *room) {
        *room = wanted * 2;
        *buffer = realloc(*buffer, *room);
        if (!*buffer) { perror("realloc"); exit(1); }
    }
    return *buffer;
}

static void issue(connection *c, int slot, uint64_t now) {
    if (stopping) return;
    uint32_t opaque = FIRST_OPAQUE + slot;
    if (is_send) {
        frame *f = &frames[turn++ % ((uint64_t)topics * queues)];
        char *at = grow(&c->out, &c->out_room, c->out_length + f->length) + c->out_length;
        memcpy(at, f->bytes, f->length);
        sequence++;
        put_digits(at + f->opaque_at, 10, opaque, 10);
        put_digits(at + f->key_at, 16, sequence, 16);
        put_digits(at + f->unique_at, 16, sequence, 16);
        if (size >= 16) put_digits(at + f->body_at, 16, sequence, 16);
        c->out_length += f->length;
    } else {
        char header[1024];
        int length = snprintf(header, sizeof header,
            "{\"code\":11,\"extFields\":{\"commitOffset\":\"0\",\"consumerGroup\":\"bench_group\",\"expressionType\":\"TAG\","
            "\"maxMsgNums\":\"%d\",\"queueId\":\"%d\",\"queueOffset\":\"%lld\",\"subscription\":\"%s\",\"subVersion\":\"1700000000000\","
            "\"suspendTimeoutMillis\":\"0\",\"sysFlag\":\"4\",\"topic\":\"%s\",\"bname\":\"broker-a\"},\"flag\":0,\"language\":\"JAVA\","
            "\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":513}",
            max, c->queue, (long long)c->requests[slot].offset, subscription, prefix, opaque);
        char *at = grow(&c->out, &c->out_room, c->out_length + 8 + length) + c->out_length;
        put32(at, 4 + length);
        put32(at + 4, length);
        memcpy(at + 8, header, length);
        c->out_length += 8 + length;
    }
    c->requests[slot].sent_ns = now;
    in_flight++;
}

static void flush(connection *c) {
    while (c->out_done < c->out_length) {
        ssize_t n = send(c->fd, c->out + c->out_done, c->out_length - c->out_done, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) { perror("topicload: send"); exit(1); }
        c->out_done += n;
    }
    int writes = c->out_done < c->out_length;
    if (!writes) c->out_done = c->out_length = 0;
    if (writes != c->writes) {
        struct epoll_event event = { .events = EPOLLIN | (writes ? EPOLLOUT : 0), .data.ptr = c };
        epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
        c->writes = writes;
    }
}

static int64_t number_of(const char *header, int length, const char *name, int64_t absent) {
    const char *at = memmem(header, length, name, strlen(name));
    if (!at) return absent;
    at += strlen(name);
    return strtoll(*at == '"' ? at + 1 : at, NULL, 10);
}

static int count_records(const char *at, int length) {
    int count = 0;
    while (length >= RECORD_MIN) {
        uint32_t record = get32(at);
        if (record < RECORD_MIN || record > (uint32_t)length) break;
        at += record, length -= record, count++;
    }
    if (length) bad_frames++;
    return count;
}

static void take_answer(connection *c, const char *at, int length, uint64_t now) {
    uint32_t header_length = get32(at);
    const char *header = at + 4;
    if (header_length >> 24 || (int)header_length > length - 4) { bad_frames++; return; }
    char text[1024]; /* numbers are read up to a character that is none, so a zero must follow */
    int room = header_length < sizeof text ? (int)header_length : (int)sizeof text - 1;
    memcpy(text, header, room);
    text[room] = 0;
    int64_t code = number_of(text, room, "\"code\":", -1), slot = number_of(text, room, "\"opaque\":", -1) - FIRST_OPAQUE;
    if (slot < 0 || slot >= window) { bad_frames++; return; }
    request *r = &c->requests[slot];
    int found = is_send ? code == 0 : 0;
    if (!is_send) {
        if (code == 0) found = count_records(header + header_length, length - 4 - (int)header_length);
        int64_t next = number_of(text, room, "\"nextBeginOffset\":", 0), last = number_of(text, room, "\"maxOffset\":", 0);
        r->offset = next > r->offset && next < last ? next : 0;
    }
    in_flight--;
    if (measuring) {
        messages += found, answers++;
        note_latency(now - r->sent_ns);
        if (code) errors[code > 0 && code < ERROR_CODES ? code : 0]++;
    }
    issue(c, (int)slot, now);
}

static void receive(connection *c) {
    grow(&c->in, &c->in_room, c->in_length + (1 << 17));
    ssize_t n = recv(c->fd, c->in + c->in_length, c->in_room - c->in_length, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) { fprintf(stderr, "topicload: the server closed a connection\n"); exit(1); }
    c->in_length += n;
    uint64_t now = now_ns();
    int done = 0;
    while (c->in_length - done >= 4) {
        uint32_t length = get32(c->in + done);
        if (length < 4 || length > 64 << 20) { fprintf(stderr, "topicload: a frame of %u bytes\n", length); exit(1); }
        if ((uint32_t)(c->in_length - done - 4) < length) break;
        take_answer(c, c->in + done + 4, (int)length, now);
        done += 4 + (int)length;
    }
    memmove(c->in, c->in + done, c->in_length - done);
    c->in_length -= done;
    if (c->out_length) flush(c);
}

static connection *dial(int number) {
    connection *c = calloc(1, sizeof *c);
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    c->queue = number % queues;
    c->requests = calloc(window, sizeof *c->requests);
    if (c->fd < 0 || connect(c->fd, (void *)&address, sizeof address)) { perror("topicload: connect"); exit(1); }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = c };
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
    return c;
}

/* ---- one run ---- */

static void read_options(int count, char **words) {
    static struct option known[] = {
        {"port", 1, 0, 'p'}, {"topics", 1, 0, 't'}, {"prefix", 1, 0, 'x'}, {"queues", 1, 0, 'q'}, {"conns", 1, 0, 'c'},
        {"window", 1, 0, 'w'}, {"size", 1, 0, 's'}, {"max", 1, 0, 'm'}, {"warmup", 1, 0, 'u'}, {"duration", 1, 0, 'd'},
        {"server-pid", 1, 0, 'i'}, {"subscription", 1, 0, 'f'}, {0, 0, 0, 0} };
    is_send = count > 1 && !strcmp(words[1], "send");
    if (count < 2 || (!is_send && strcmp(words[1], "pull"))) { fprintf(stderr, "topicload send|pull [options], see the source\n"); exit(2); }
    optind = 2;
    for (int option; (option = getopt_long(count, words, "", known, 0)) != -1;) switch (option) {
        case 'p': port = atoi(optarg); break;
        case 't': topics = atoi(optarg); break;
        case 'x': prefix = optarg; break;
        case 'q': queues = atoi(optarg); break;
        case 'c': conns = atoi(optarg); break;
        case 'w': window = atoi(optarg); break;
        case 's': size = atoi(optarg); break;
        case 'm': max = atoi(optarg); break;
        case 'u': warmup_s = atof(optarg); break;
        case 'd': duration_s = atof(optarg); break;
        case 'i': pid = atoi(optarg); break;
        case 'f': subscription = optarg; break;
        default: exit(2);
    }
    if (topics < 1 || topics > 9999 || queues < 1 || conns < 1 || conns > 1000 || window < 1 || window > 1000 || size < 1
        || size > 1 << 20 || max < 1 || duration_s <= 0 || strlen(prefix) > 100 || strlen(subscription) > 100) {
        fprintf(stderr, "topicload: an option is out of range\n");
        exit(2);
    }
}

int main(int count, char **words) {
    read_options(count, words);
    signal(SIGPIPE, SIG_IGN);
    run_id = (uint64_t)time(NULL) << 20 | (getpid() & 0xfffff);
    frames = calloc((size_t)topics * queues, sizeof *frames);
    for (int i = 0; is_send && i < topics * queues; i++) frames[i] = make_send(i % topics, i / topics);
    epoll_fd = epoll_create1(0);
    uint64_t begin = now_ns() + (uint64_t)(warmup_s * 1e9), end = begin + (uint64_t)(duration_s * 1e9), started = 0, stopped = 0;
    for (int i = 0; i < conns; i++) {
        connection *c = dial(i);
        for (int slot = 0; slot < window; slot++) issue(c, slot, now_ns());
        flush(c);
    }
    double server = 0, own = 0, machine = 0;
    struct epoll_event events[256];
    while (!stopping || (in_flight && now_ns() < stopped + 3000000000ull)) {
        uint64_t now = now_ns();
        if (!measuring && !stopping && now >= begin) measuring = 1, started = now, server = server_cpu_s(), own = own_cpu_s(), machine = machine_cpu_s();
        if (measuring && now >= end) {
            measuring = 0, stopping = 1, stopped = now;
            server = server_cpu_s() - server, own = own_cpu_s() - own, machine = machine_cpu_s() - machine;
        }
        int n = epoll_wait(epoll_fd, events, 256, 10);
        for (int i = 0; i < n; i++) {
            connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) flush(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
        }
    }
    double seconds = (double)(stopped - started) / 1e9, counted = messages ? (double)messages : 1;
    printf("{\"msgs\":%llu,\"reqs\":%llu,\"seconds\":%.3f,\"msgs_per_s\":%.1f,\"lat_us\":{\"p50\":%.1f,\"p99\":%.1f,\"p999\":%.1f},\"errors\":{",
        (unsigned long long)messages, (unsigned long long)answers, seconds, messages / seconds, latency_us(.5), latency_us(.99), latency_us(.999));
    for (int code = 0, first = 1; code < ERROR_CODES; code++)
        if (errors[code]) printf("%s\"%d\":%llu", first ? "" : ",", code, (unsigned long long)errors[code]), first = 0;
    printf("},\"bad_frames\":%llu,\"conns_lost\":0,\"offset_gaps\":0,\"server_cpu_s\":%.2f,\"server_cpu_cores\":%.3f,\"cpu_us_per_msg\":%.3f,"
        "\"other_cpu_cores\":%.3f,\"gen_cpu_s\":%.3f,\"gen_cpu_cores\":%.3f}\n",
        (unsigned long long)bad_frames, server, server / seconds, server * 1e6 / counted, (machine - server - own) / seconds, own, own / seconds);
    return messages ? 0 : 1;
}
