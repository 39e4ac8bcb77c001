/* A wall clock that a test can step: LD_PRELOADed into redis-server.
 *
 * The file named by AIOLOCKS_CLOCK is mapped; its first eight bytes are the microseconds to add, which a test may
 * change at any time. Only the wall clock is moved: clocks that count from boot run on, as they do when NTP steps.
 * Nothing is allocated and no symbol is looked up, because allocators read the clock before they are ready.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_us;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("AIOLOCKS_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof *offset_us, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) offset_us = mapped;
    close(fd);
}

static int64_t wall_us(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 + (offset_us ? *offset_us : 0);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return (int)syscall(SYS_clock_gettime, clock, now);
    int64_t us = wall_us();
    now->tv_sec = us / 1000000;
    now->tv_nsec = us % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    int64_t us = wall_us();
    now->tv_sec = us / 1000000;
    now->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *now) {
    time_t seconds = wall_us() / 1000000;
    if (now) *now = seconds;
    return seconds;
}
