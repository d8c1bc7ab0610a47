/* Usage: seek_in_folder FOLDER
 *
 * Lists FOLDER, with signals arriving all the while; lists it again after rewinddir; then goes back to every 997th place
 * in turn by seekdir, and expects the entry that was there. Prints the number of entries. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define STEP 997

static void ignored(int number) { (void)number; }

static long list(DIR *folder, long *places, char (*names)[256], long most)
{
    long entries = 0;
    for (;;) {
        long place = telldir(folder);
        struct dirent *entry = readdir(folder);
        if (!entry)
            return entries;
        if (entries % STEP == 0 && entries / STEP < most) {
            places[entries / STEP] = place;
            strcpy(names[entries / STEP], entry->d_name);
        }
        entries++;
    }
}

int main(int argc, char **argv)
{
    enum { MOST = 1000 };
    static long places[MOST], places_again[MOST];
    static char names[MOST][256], names_again[MOST][256];
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    if (!folder)
        return 1;

    struct sigaction action = { .sa_handler = ignored };
    struct itimerval often = { { 0, 500 }, { 0, 500 } }, never = { { 0, 0 }, { 0, 0 } };
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    long entries = list(folder, places, names, MOST);
    rewinddir(folder);
    long again = list(folder, places_again, names_again, MOST);
    setitimer(ITIMER_REAL, &never, NULL);
    if (again != entries) {
        fprintf(stderr, "%ld entries, after rewinddir %ld\n", entries, again);
        return 2;
    }
    for (long i = entries / STEP; i >= 0; i--) {
        if (i >= MOST || i * STEP >= entries)
            continue;
        seekdir(folder, places[i]);
        struct dirent *entry = readdir(folder);
        if (!entry || strcmp(entry->d_name, names[i]) != 0) {
            fprintf(stderr, "entry %ld is %s, expected %s\n", i * STEP, entry ? entry->d_name : "missing", names[i]);
            return 3;
        }
    }
    printf("%ld entries\n", entries);
    return 0;
}
