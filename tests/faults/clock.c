// A clock that jumps: preloaded into the processes of a job, whose time of day is that of the machine and the number of
// seconds in the file that EPL_TEST_CLOCK names. What waits until a time of day waits by this clock, jumps while it
// waits included, as threads of Python 3.7 and of TensorFlow do. The steady clock is left alone, as it is by a jump.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL
// A wait looks at the clock so often.
#define SLICE_NS (NS / 50)
// A time so far from now is one of the steady clock.
#define YEAR_NS (365LL * 24 * 3600 * NS)

static long long *jump_ns;
static int (*real_gettime)(clockid_t, struct timespec *);
static long (*real_syscall)(long, ...);
static int (*real_sem_timedwait)(sem_t *, const struct timespec *);
static int (*real_cond_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("EPL_TEST_CLOCK");
  real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  real_syscall = dlsym(RTLD_NEXT, "syscall");
  real_sem_timedwait = dlsym(RTLD_NEXT, "sem_timedwait");
  real_cond_timedwait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (path == NULL) return;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) abort();
  jump_ns = mmap(NULL, sizeof *jump_ns, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (jump_ns == MAP_FAILED) abort();
}

static long long jump(void) { return jump_ns == NULL ? 0 : *(volatile long long *)jump_ns; }

static long long ns_of(const struct timespec *time) { return time->tv_sec * NS + time->tv_nsec; }

static struct timespec time_of(long long ns) { return (struct timespec){ns / NS, ns % NS}; }

static long long machine_ns(void) {
  struct timespec now;
  if (real_gettime == NULL) begin();
  real_gettime(CLOCK_REALTIME, &now);
  return ns_of(&now);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  if (real_gettime == NULL) begin();
  int status = real_gettime(clock, now);
  if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) *now = time_of(ns_of(now) + jump());
  return status;
}

int gettimeofday(struct timeval *now, void *zone) {
  (void)zone;
  struct timespec found = time_of(machine_ns() + jump());
  *now = (struct timeval){found.tv_sec, found.tv_nsec / 1000};
  return 0;
}

time_t time(time_t *where) {
  time_t now = (machine_ns() + jump()) / NS;
  if (where != NULL) *where = now;
  return now;
}

// Whether a wait until `until` is by the time of day, and so by the clock that jumps.
static int jumps(const struct timespec *until) {
  if (jump_ns == NULL || until == NULL) return 0;
  long long left = ns_of(until) - machine_ns() - jump();
  return left > -YEAR_NS && left < YEAR_NS;
}

// The end of the next slice of such a wait, by the machine's clock, or 0 once its time has come.
static long long slice(const struct timespec *until) {
  long long now = machine_ns(), left = ns_of(until) - now - jump();
  return left <= 0 ? 0 : now + (left < SLICE_NS ? left : SLICE_NS);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
  if (!jumps(until)) return real_sem_timedwait(semaphore, until);
  for (;;) {
    long long end = slice(until);
    struct timespec part = time_of(end == 0 ? machine_ns() : end);
    if (real_sem_timedwait(semaphore, &part) == 0) return 0;
    if (errno != ETIMEDOUT || end == 0) return -1;
  }
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
  if (!jumps(until)) return real_cond_timedwait(condition, mutex, until);
  for (;;) {
    long long end = slice(until);
    struct timespec part = time_of(end == 0 ? machine_ns() : end);
    int status = real_cond_timedwait(condition, mutex, &part);
    if (status != ETIMEDOUT || end == 0) return status;
  }
}

long syscall(long number, ...) {
  long given[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; i++) given[i] = va_arg(list, long);
  va_end(list);
  const struct timespec *until = (const struct timespec *)given[3];
  int by_clock = number == SYS_futex && (given[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET &&
                 (given[1] & FUTEX_CLOCK_REALTIME) && jumps(until);
  if (!by_clock) return real_syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
  for (;;) {
    long long end = slice(until);
    struct timespec part = time_of(end == 0 ? machine_ns() : end);
    long found = real_syscall(number, given[0], given[1], given[2], (long)&part, given[4], given[5]);
    if (found == 0 || errno != ETIMEDOUT || end == 0) return found;
  }
}
