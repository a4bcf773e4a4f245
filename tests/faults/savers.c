/* Several processes save to one path and are killed at any moment: the file must be complete.
 *   savers PATH ROUNDS     prints the number of damaged files; the status is 0 if there is none */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <tapegrad.h>
#include <unistd.h>

enum { SAVERS = 3, COUNT = 20000 };

/* Saves COUNT equal numbers. */
static void save(const char *path, int value)
{
    static float values[COUNT];
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)value;
    const FileEntry entry = { "x", FILE_F32, shape(COUNT), values };
    if (!tensor_file_save(&entry, 1, NULL, 0, path)) {
        fprintf(stderr, "%s\n", tapegrad_error());
        _exit(EXIT_FAILURE);
    }
}

static void save_on(const char *path, int saver)
{
    for (int n = 0;; n++)
        save(path, n % 1000 * SAVERS + saver);
}

static bool is_whole(const char *path)
{
    static Real values[COUNT];
    TensorFile *file = tensor_file_open(path);
    bool ok = file && tensor_file_read(file, "x", shape(COUNT), values);
    if (!ok)
        fprintf(stderr, "%s\n", tapegrad_error());
    for (int i = 0; ok && i < COUNT; i++)
        ok = values[i] == values[0];
    tensor_file_close(file);
    return ok;
}

int main(int argc, char **argv)
{
    const int rounds = argc == 3 ? atoi(argv[2]) : 0;
    int damaged = 0, failed = 0;
    if (rounds > 0)
        save(argv[1], 0);
    for (int round = 0; round < rounds; round++) {
        pid_t savers[SAVERS];
        for (int i = 0; i < SAVERS; i++)
            if ((savers[i] = fork()) == 0)
                save_on(argv[1], i);
        usleep(50000 + 7919 * (unsigned)round % 20000);
        for (int i = 0; i < SAVERS; i++)
            kill(savers[i], SIGKILL);
        for (int i = 0, status; i < SAVERS; i++)
            failed += waitpid(savers[i], &status, 0) != savers[i] || !WIFSIGNALED(status);
        damaged += !is_whole(argv[1]);
    }
    printf("killed savers: %d rounds of %d, %d damaged files, %d failed saves\n", rounds, SAVERS,
           damaged, failed);
    return rounds == 0 || damaged || failed;
}
