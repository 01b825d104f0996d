/* Fault injection for one process, loaded by LD_PRELOAD.
 *
 * Power loss: a shadow of a folder holds what `fsync` and `fdatasync` made durable, and nothing else. `inodes/N` is the
 * durable content of the file with inode N, `dirs/N` the durable entries of a folder, `links/N` a hard link that keeps the
 * inode from being used again. A file that was synced in a folder that was not is not in the folder after a power loss.
 *
 * Failed syncs: the N-th one returns EIO. As in Linux, the pages that were dirty then count as clean: a later sync of the
 * same content returns 0 and makes nothing of it durable.
 *
 * Failed threads: while a flag is set, `pthread_create` returns EAGAIN.
 *
 * Words of the control file, 8 bytes each, are in the order of `enum`. Nothing here closes a descriptor of a file of the
 * folder: that would give up the locks that SQLite has on it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SYNCS, FAIL_SYNC_AT, FAILED_SYNCS, REFUSE_THREADS, REFUSED_THREADS, ACCEPTS, FAILED_ACCEPTS, FAILED_STORES, WORDS = 16 };
enum { PAGE = 4096, CHUNK = 64 * PAGE, LOST_MAX = 16384 };

struct lost { uint64_t inode; int64_t at; char page[PAGE]; };

static _Atomic uint64_t nothing[WORDS];
static _Atomic uint64_t *control = nothing;
static char root[2048], shadow[2048];
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static struct lost *losses;
static size_t losses_count;
static char live[CHUNK], durable[CHUNK];

static void stop(const char *what) {
    dprintf(2, "faults.c: %s: %s\n", what, strerror(errno));
    _exit(99);
}

__attribute__((constructor)) static void begin(void) {
    const char *words = getenv("FAULTS_CONTROL"), *folder = getenv("FAULTS_ROOT"), *copy = getenv("FAULTS_SHADOW");
    if (words) {
        int fd = open(words, O_RDWR | O_CLOEXEC);
        if (fd < 0) stop("the control file");
        control = mmap(NULL, WORDS * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (control == MAP_FAILED) stop("the control file");
        close(fd);
    }
    if (folder && copy) {
        snprintf(root, sizeof root, "%s", folder);
        snprintf(shadow, sizeof shadow, "%s", copy);
        losses = mmap(NULL, LOST_MAX * sizeof *losses, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (losses == MAP_FAILED) stop("memory");
    }
}

/* The path of a descriptor below the folder; 0 if it is elsewhere. */
static int is_ours(int fd, char *path, size_t room) {
    if (!root[0]) return 0;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, room - 1);
    if (length < 0) return 0;
    path[length] = 0;
    size_t front = strlen(root);
    return !strncmp(path, root, front) && (path[front] == '/' || !path[front]);
}

static ssize_t read_page(int fd, char *to, int64_t at) {
    ssize_t done = 0;
    while (done < CHUNK) {
        ssize_t count = pread(fd, to + done, CHUNK - done, at + done);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return -1;
        if (count == 0) break;
        done += count;
    }
    memset(to + done, 0, CHUNK - done);
    return done;
}

static struct lost *find_lost(uint64_t inode, int64_t at) {
    for (size_t i = 0; i < losses_count; i++)
        if (losses[i].inode == inode && losses[i].at == at) return &losses[i];
    return NULL;
}

/* Makes the content of a file durable, or, if the sync fails, takes its dirty pages for lost. */
static void sync_file(int fd, const struct stat *about, const char *path, int fails) {
    char name[4096];
    uint64_t inode = about->st_ino;
    snprintf(name, sizeof name, "%s/links/%lu", shadow, inode);
    (void)!linkat(AT_FDCWD, path, AT_FDCWD, name, 0);
    int from = fd, own = -1;
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY) {
        own = from = open(name, O_RDONLY | O_CLOEXEC);
        if (own < 0) stop("a file that is only written");
    }
    snprintf(name, sizeof name, "%s/inodes/%lu", shadow, inode);
    int to = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (to < 0) stop("the shadow of a file");
    for (int64_t at = 0; at < about->st_size; at += CHUNK) {
        if (read_page(from, live, at) < 0) stop("a read");
        if (read_page(to, durable, at) < 0) stop("a read of the shadow");
        if (!memcmp(live, durable, CHUNK)) continue;
        for (int64_t page = 0; page < CHUNK; page += PAGE) {
            if (!memcmp(live + page, durable + page, PAGE)) continue;
            struct lost *lost = find_lost(inode, at + page);
            if (fails) {
                if (!lost) {
                    if (losses_count == LOST_MAX) stop("too many lost pages");
                    lost = &losses[losses_count++];
                }
                lost->inode = inode;
                lost->at = at + page;
                memcpy(lost->page, live + page, PAGE);
            } else if (!lost || memcmp(lost->page, live + page, PAGE)) {
                if (pwrite(to, live + page, PAGE, at + page) != PAGE) stop("a write to the shadow");
            }
        }
    }
    if (!fails && ftruncate(to, about->st_size)) stop("the shadow of a file");
    close(to);
    if (own >= 0) close(own);
}

/* Makes the entries of a folder durable. */
static void sync_folder(const struct stat *about, const char *path) {
    char name[4096], part[4200], entry_path[8192], link[4096];
    snprintf(name, sizeof name, "%s/dirs/%lu", shadow, (uint64_t)about->st_ino);
    snprintf(part, sizeof part, "%s.part", name);
    DIR *folder = opendir(path);
    FILE *list = fopen(part, "we");
    if (!folder || !list) stop("a folder");
    for (struct dirent *entry; (entry = readdir(folder));) {
        struct stat found;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        snprintf(entry_path, sizeof entry_path, "%s/%s", path, entry->d_name);
        if (lstat(entry_path, &found)) continue;
        if (S_ISREG(found.st_mode)) {
            snprintf(link, sizeof link, "%s/links/%lu", shadow, (uint64_t)found.st_ino);
            (void)!linkat(AT_FDCWD, entry_path, AT_FDCWD, link, 0);
        } else if (!S_ISDIR(found.st_mode)) {
            continue;
        }
        fprintf(list, "%c %lu %s\n", S_ISDIR(found.st_mode) ? 'd' : 'f', (uint64_t)found.st_ino, entry->d_name);
    }
    closedir(folder);
    if (fclose(list) || rename(part, name)) stop("the shadow of a folder");
}

/* Counts a failure, and apart those of databases. */
static void note_failure(const char *path) {
    dprintf(2, "faults.c: a sync of %s fails\n", path);
    if (strstr(path, ".db")) atomic_fetch_add(&control[FAILED_STORES], 1);
    atomic_fetch_add(&control[FAILED_SYNCS], 1);
}

/* One sync: 0, or EIO where this one fails. */
static int synced(int fd) {
    char path[4096];
    if (!is_ours(fd, path, sizeof path)) return -1;
    pthread_mutex_lock(&turn);
    uint64_t number = atomic_fetch_add(&control[SYNCS], 1) + 1;
    int fails = atomic_load(&control[FAIL_SYNC_AT]) == number;
    struct stat about;
    if (fstat(fd, &about)) stop("fstat");
    if (S_ISREG(about.st_mode)) sync_file(fd, &about, path, fails);
    else if (S_ISDIR(about.st_mode) && !fails) sync_folder(&about, path);
    if (fails) note_failure(path);
    pthread_mutex_unlock(&turn);
    return fails;
}

static int answer(int fd, const char *name) {
    switch (synced(fd)) {
    case 0: return 0;
    case 1: errno = EIO; return -1;
    default: {
        int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
        return real(fd);
    }
    }
}

int fsync(int fd) { return answer(fd, "fsync"); }

int fdatasync(int fd) { return answer(fd, "fdatasync"); }

/* It makes nothing durable: the metadata of the file stay behind. But it reports errors, once. */
int sync_file_range(int fd, off64_t at, off64_t bytes, unsigned int flags) {
    char path[4096];
    (void)at, (void)bytes, (void)flags;
    if (!is_ours(fd, path, sizeof path)) return 0;
    pthread_mutex_lock(&turn);
    uint64_t number = atomic_fetch_add(&control[SYNCS], 1) + 1;
    int fails = atomic_load(&control[FAIL_SYNC_AT]) == number;
    struct stat about;
    if (fails && !fstat(fd, &about)) {
        sync_file(fd, &about, path, 1);
        note_failure(path);
    }
    pthread_mutex_unlock(&turn);
    errno = EIO;
    return fails ? -1 : 0;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    if (atomic_load(&control[REFUSE_THREADS])) {
        atomic_fetch_add(&control[REFUSED_THREADS], 1);
        return EAGAIN;
    }
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
    return real(thread, attributes, run, argument);
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
    int (*real)(int, struct sockaddr *, socklen_t *, int) =
        (int (*)(int, struct sockaddr *, socklen_t *, int))dlsym(RTLD_NEXT, "accept4");
    int taken = real(fd, address, length, flags), error = errno;
    atomic_fetch_add(&control[ACCEPTS], 1);
    if (taken < 0 && error != EAGAIN && error != EWOULDBLOCK) atomic_fetch_add(&control[FAILED_ACCEPTS], 1);
    errno = error;
    return taken;
}
