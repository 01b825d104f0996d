/* Sandbox of a worker process: it keeps its connection and its memory, and has no other access.
 *
 * It opens no file and no socket, starts no program, writes no core, gains no privilege, and ends with its parent. */

#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#ifdef ARCHITECTURE
/* Allowed system calls (seccomp filter); all others fail with EPERM. */
static const int allowed[] = {
    __NR_read,          __NR_write,         __NR_readv,        __NR_writev,       __NR_recvfrom,  __NR_sendto,
    __NR_close,         __NR_exit,          __NR_exit_group,   __NR_brk,          __NR_mmap,      __NR_munmap,
    __NR_mremap,        __NR_mprotect,      __NR_madvise,      __NR_futex,        __NR_getrandom, __NR_clock_gettime,
    __NR_gettimeofday,  __NR_rt_sigreturn,  __NR_rt_sigaction, __NR_rt_sigprocmask, __NR_sigaltstack, __NR_sched_yield,
    __NR_getpid,        __NR_gettid,        __NR_tgkill,       __NR_getrusage,    __NR_prlimit64, __NR_restart_syscall,
    __NR_sched_getaffinity,
};

static int filter_calls(void) {
  enum { COUNT = sizeof allowed / sizeof *allowed };
  struct sock_filter filter[COUNT + 6];
  size_t at = 0;
  filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
  filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
  filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  filter[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (size_t call = 0; call < COUNT; call++)
    filter[at++] =
        (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[call], (unsigned char)(COUNT - call), 0);
  filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
  filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog program = {.len = (unsigned short)at, .filter = filter};
  /* For all threads: the main thread only waits for the computing one. */
  if (syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0)
    return 0;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
#endif

/* The current address space of the process, in bytes; 0 if unknown. */
static unsigned long address_space(void) {
  FILE *file = fopen("/proc/self/statm", "re");
  unsigned long pages = 0;
  if (file == NULL)
    return 0;
  if (fscanf(file, "%lu", &pages) != 1)
    pages = 0;
  fclose(file);
  return pages * (unsigned long)sysconf(_SC_PAGESIZE);
}

static int limit(int resource, unsigned long most) {
  struct rlimit value = {.rlim_cur = most, .rlim_max = most};
  return setrlimit(resource, &value);
}

/* First call in a new process: closes all but the first three descriptors, and ends the process with its parent. Returns
 * 0 on success. */
int tocsin_worker_begin(long parent) {
  /* Signals to stop the server are ignored, so that work can finish: the parent closes the connection. */
  signal(SIGTERM, SIG_IGN);
  signal(SIGINT, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
#ifdef SYS_close_range
  if (syscall(SYS_close_range, 3U, ~0U, 0U) != 0)
#endif
    for (int file = 3; file < 4096; file++)
      close(file);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return -1;
  /* The parent may have ended before. */
  return (long)getppid() == parent ? 0 : -1;
}

/* Called by the computing thread, once all resources are open. Returns 0 on success. */
int tocsin_worker_confine(unsigned long address_bytes) {
  unsigned long now = address_space();
  if (now == 0)
    return -1;
  if (prctl(PR_SET_DUMPABLE, 0) != 0)
    return -1;
  if (limit(RLIMIT_CORE, 0) != 0 || limit(RLIMIT_FSIZE, 0) != 0 || limit(RLIMIT_AS, now + address_bytes) != 0)
    return -1;
  if (limit(RLIMIT_NOFILE, 0) != 0)
    return -1;
#ifdef ARCHITECTURE
  /* Without seccomp in the kernel, all limits above still apply. */
  if (filter_calls() != 0 && errno != EINVAL && errno != ENOSYS)
    return -1;
#endif
  return 0;
}

/* A reading of the processor time is used for so long, by the clock. */
enum { READING_MILLISECONDS = 5 };

/* The processor time of the process, in milliseconds, at most READING_MILLISECONDS too little. Unlike the processor
 * time, the clock is read without a system call. Called by the computing thread only. */
unsigned long tocsin_worker_milliseconds(void) {
  static unsigned long read_at, reading;
  static int is_read;
  struct timespec now;
  if (clock_gettime(CLOCK_MONOTONIC, &now) != 0)
    return 0;
  unsigned long clock = (unsigned long)now.tv_sec * 1000 + (unsigned long)now.tv_nsec / 1000000;
  if (is_read && clock - read_at < READING_MILLISECONDS)
    return reading;
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) != 0)
    return 0;
  reading = (unsigned long)now.tv_sec * 1000 + (unsigned long)now.tv_nsec / 1000000;
  read_at = clock;
  is_read = 1;
  return reading;
}

/* Limits the further processor time of the process, in seconds, to this or up to twice as much; the kernel ends it
 * after that. The limit is raised only when less is left, which is rare. */
void tocsin_worker_seconds(unsigned long seconds) {
  static unsigned long most;
  unsigned long used = tocsin_worker_milliseconds() / 1000 + 1;
  if (used + seconds <= most)
    return;
  most = used + 2 * seconds;
  struct rlimit value = {.rlim_cur = most, .rlim_max = RLIM_INFINITY};
  setrlimit(RLIMIT_CPU, &value);
}
