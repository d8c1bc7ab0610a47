/* Usage: forked_readers N FILE
 *
 * Opens FILE, then forks N readers that share the descriptor. Each prints the sum of the int32 it reads: every other one
 * by pread in pieces, the others from a mapping. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int64_t by_read(int fd)
{
    static int32_t piece[1 << 14];
    int64_t sum = 0;
    off_t offset = 0;
    ssize_t got;
    while ((got = pread(fd, piece, sizeof piece, offset)) > 0) {
        for (ssize_t i = 0; i < got / 4; i++)
            sum += piece[i];
        offset += got;
    }
    if (got < 0)
        exit(2);
    return sum;
}

static int64_t by_mapping(int fd, size_t size)
{
    const int32_t *data = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    int64_t sum = 0;
    if (data == MAP_FAILED)
        exit(3);
    for (size_t i = 0; i < size / 4; i++)
        sum += data[i];
    return sum;
}

int main(int argc, char **argv)
{
    int readers = argc == 3 ? atoi(argv[1]) : 0;
    int fd = argc == 3 ? open(argv[2], O_RDONLY) : -1;
    struct stat status;
    if (readers < 1 || fd < 0 || fstat(fd, &status) != 0)
        return 1;
    for (int reader = 0; reader < readers; reader++) {
        if (fork() == 0) {
            printf("%" PRId64 "\n", reader % 2 ? by_mapping(fd, status.st_size) : by_read(fd));
            return 0;
        }
    }
    int failed = 0, ended;
    while (wait(&ended) > 0)
        failed |= ended != 0;
    return failed;
}
