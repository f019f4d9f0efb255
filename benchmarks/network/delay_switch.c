/* A user-space Ethernet switch that delays frames, for kernels without netem.
 *
 *     delay_switch PORT/MAC/DELAY_US ...
 *
 * A frame read on one port leaves on the port that owns its destination, or on all others if it is broadcast, after the
 * delays of both ports, in the order of arrival. Frames carry a virtio header, so that large ones pass uncut and
 * without a checksum, as through a kernel bridge. The switch does not limit rates: the token bucket of a port shapes
 * what it sends, and a full queue there drops the frame. It prints "ready" once all ports are open. A port whose cable
 * is pulled loses the frames that would leave through it, and works again when the cable is back.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define MAX_PORTS 256
#define FRAME_MAX (65536 + 64)   /* the largest frame of segmentation offload, and headers */
#define VNET sizeof(struct virtio_net_hdr)
#define BURST 32                 /* frames read from one port before the next has its turn */
#define SOCKET_BUFFER (16 << 20) /* beyond any token bucket's queue: frames are dropped there, not here */

struct port {
    int fd;
    uint8_t mac[6];
    int64_t delay_ns;
};

struct frame {
    int64_t due;
    uint64_t seq;
    int out, len;
    uint8_t data[];
};

static struct port ports[MAX_PORTS];
static int num_ports;
static struct frame **heap; /* the earliest due first, then the order of arrival */
static size_t used, room;
static uint64_t next_seq;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int before(const struct frame *a, const struct frame *b) {
    return a->due != b->due ? a->due < b->due : a->seq < b->seq;
}

static void push(struct frame *f) {
    if (used == room) {
        room = room ? room * 2 : 1024;
        heap = realloc(heap, room * sizeof *heap);
        if (!heap) abort();
    }
    size_t i = used++;
    for (; i && before(f, heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = f;
}

static struct frame *pop(void) {
    struct frame *top = heap[0], *last = heap[--used];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= used) break;
        if (child + 1 < used && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], last)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static void enqueue(const uint8_t *buf, int len, int in, int out, int64_t now) {
    struct frame *f = malloc(sizeof *f + len);
    if (!f) return;
    f->due = now + ports[in].delay_ns + ports[out].delay_ns;
    f->seq = next_seq++;
    f->out = out;
    f->len = len;
    memcpy(f->data, buf, len);
    push(f);
}

static void open_port(const char *spec) {
    struct port *p = &ports[num_ports];
    char name[IFNAMSIZ];
    unsigned m[6];
    long long delay_us;
    if (sscanf(spec, "%15[^/]/%x:%x:%x:%x:%x:%x/%lld", name, m, m + 1, m + 2, m + 3, m + 4, m + 5, &delay_us) != 8) {
        fprintf(stderr, "delay_switch: not PORT/MAC/DELAY_US: %s\n", spec);
        exit(2);
    }
    for (int i = 0; i < 6; i++) p->mac[i] = m[i];
    p->delay_ns = delay_us * 1000;
    p->fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    int one = 1, big = SOCKET_BUFFER;
    struct sockaddr_ll a = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL),
                            .sll_ifindex = if_nametoindex(name)};
    struct packet_mreq promiscuous = {.mr_ifindex = a.sll_ifindex, .mr_type = PACKET_MR_PROMISC};
    setsockopt(p->fd, SOL_SOCKET, SO_RCVBUFFORCE, &big, sizeof big);
    setsockopt(p->fd, SOL_SOCKET, SO_SNDBUFFORCE, &big, sizeof big);
    if (p->fd < 0 || setsockopt(p->fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) ||
        setsockopt(p->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one) ||
        setsockopt(p->fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous) ||
        bind(p->fd, (struct sockaddr *)&a, sizeof a)) {
        perror(name);
        exit(1);
    }
    num_ports++;
}

static void read_port(int in) {
    static uint8_t buf[FRAME_MAX + VNET];
    for (int i = 0; i < BURST; i++) {
        int n = recv(ports[in].fd, buf, sizeof buf, MSG_DONTWAIT);
        if (n < (int)(VNET + ETHER_HDR_LEN)) return;
        int64_t now = now_ns();
        const uint8_t *to = buf + VNET;
        for (int out = 0; out < num_ports; out++)
            if (out != in && ((to[0] & 1) || !memcmp(to, ports[out].mac, 6))) enqueue(buf, n, in, out, now);
    }
}

static void send_due(void) {
    int64_t now = now_ns();
    while (used && heap[0]->due <= now) {
        struct frame *f = pop();
        (void)!send(ports[f->out].fd, f->data, f->len, MSG_DONTWAIT);
        free(f);
    }
}

int main(int argc, char **argv) {
    struct pollfd fds[MAX_PORTS];
    if (argc - 1 > MAX_PORTS) return 2;
    for (int i = 1; i < argc; i++) open_port(argv[i]);
    for (int i = 0; i < num_ports; i++) fds[i] = (struct pollfd){ports[i].fd, POLLIN, 0};
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct timespec wait = {0, 0}, *timeout = NULL;
        if (used) {
            int64_t left = heap[0]->due - now_ns();
            if (left > 0) wait = (struct timespec){left / 1000000000, left % 1000000000};
            timeout = &wait;
        }
        if (ppoll(fds, num_ports, timeout, NULL) < 0 && errno != EINTR) return 1;
        for (int i = 0; i < num_ports; i++)
            /* An error, such as a pulled cable, is reported once and cleared by reading it. */
            if (fds[i].revents & (POLLIN | POLLERR)) read_port(i);
        send_due();
    }
}
