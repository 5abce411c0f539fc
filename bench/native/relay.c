/* relay PORT ENGINE_PORT: passes bytes both ways and looks at none of them.

   One connection to the engine for each client's, blocking writes, one thread. Nothing that stands between a client and
   an engine can do with fewer system calls a request: wait, read and write, twice. What it costs is what the kernel
   costs on this machine. */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DESCRIPTORS = 65536, EVENTS = 256, BUFFER = 65536 };

static int peer[DESCRIPTORS];
static char buffer[BUFFER];

static struct sockaddr_in local(const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void watch(int poll, int descriptor) {
    int on = 1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = descriptor};
    epoll_ctl(poll, EPOLL_CTL_ADD, descriptor, &event);
}

static void end(int descriptor) {
    int other = peer[descriptor];
    if (!other) return;
    peer[descriptor] = peer[other] = 0;
    close(descriptor);
    close(other);
}

int main(int count, char **arguments) {
    if (count != 3) return fprintf(stderr, "usage: relay PORT ENGINE_PORT\n"), 2;
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in mine = local(arguments[1]), engine = local(arguments[2]);
    int listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&mine, sizeof mine) || listen(listener, 4096)) return perror("relay"), 1;
    watch(poll, listener);
    for (;;) {
        struct epoll_event ready[EVENTS];
        int found = epoll_wait(poll, ready, EVENTS, -1);
        for (int at = 0; at < found; at++) {
            int from = ready[at].data.fd;
            if (from == listener) {
                int client = accept(listener, NULL, NULL), out = socket(AF_INET, SOCK_STREAM, 0);
                if (client < 0 || out >= DESCRIPTORS || connect(out, (void *)&engine, sizeof engine)) return 1;
                peer[client] = out;
                peer[out] = client;
                watch(poll, client);
                watch(poll, out);
                continue;
            }
            if (!peer[from]) continue;
            ssize_t size = recv(from, buffer, sizeof buffer, MSG_DONTWAIT);
            if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) continue; /* an event of a closed pair's number */
            for (ssize_t sent = 0, part; sent < size; sent += part)
                if ((part = write(peer[from], buffer + sent, size - sent)) < 0) size = 0;
            if (size <= 0) end(from);
        }
    }
}
