/* Command lines by table: one row an option tells where its value goes, what is allowed and what
 * --help says; and it is kept in checkpoints. */
#ifndef TAPEGRAD_OPTIONS_H
#define TAPEGRAD_OPTIONS_H

#include <tapegrad.h>

typedef enum {
    WHOLE,      /* int64_t */
    NUMBER,     /* double */
    CHOICE,     /* const char *, one of the choices */
    PATH,       /* const char * */
    FOLDER,     /* likewise */
    FLAG,       /* bool */
    CHECKPOINT, /* a PATH: its options take the preset's place, and OF_MODEL they cannot change */
    RESUMED,    /* likewise, and OF_TRAINING neither */
} OptionKind;

/* Presets and checkpoints tell all but the last. */
typedef enum {
    OF_MODEL,
    OF_TRAINING,
    OF_GOAL, /* how far to train: a resumed run may go further */
    OF_RUN,
} OptionScope;

typedef struct Option {
    const char *name;
    OptionKind kind;
    OptionScope scope;
    size_t offset;              /* of the field in the program's struct */
    double low, high;           /* of WHOLE and NUMBER, both allowed */
    const char *const *choices; /* of CHOICE, ended by NULL */
    const char *help;
} Option;

enum { OPTIONS_MAX = 48, OPTIONS_TABLES = 6 };

typedef struct OptionTable {
    const Option *rows;
    int count;
} OptionTable;
#define OPTION_TABLE(rows)                                                                         \
    {                                                                                              \
        rows, sizeof(rows) / sizeof *(rows)                                                        \
    }

/* A program, or a part of one with options of its own. */
typedef struct Command Command;
struct Command {
    const char *program;                /* as checkpoints name it */
    const char *about;                  /* what --help begins with */
    OptionTable tables[OPTIONS_TABLES]; /* OPTIONS_MAX options in all; the rest are empty */
    const Command *trainer;             /* whose options checkpoints tell; NULL: this one's */
    const void *presets;                /* structs of this size, with a value for every option */
    size_t size;
    int standard;                    /* the preset where none is named */
    const char *const *preset_names; /* of --preset and --help, ended by NULL; or NULL */
};

/* The texts that the command line gave, by row: "" for a flag, NULL where there was none. */
typedef struct Given {
    const Command *command;
    const char *texts[OPTIONS_MAX];
} Given;

/* Fills the program's struct: from the preset or, where one is given, a checkpoint, with its preset for
 * what it does not tell, and then from the command line. A bad value, and one that contradicts the checkpoint, is told in one sentence and
 * ends the program with status BAD_USE; --help ends it with status 0. */
Given options_parse(const Command *command, int argc, char **argv, void *options);

/* The text of an option on the command line, or NULL. */
const char *option_given(const Given *given, const char *name);

/* Ends the program when one of the options, names ended by NULL, was given: "expected without
 * --evaluate, which trains nothing". */
void options_refuse(const Given *given, const char *const *names, const char *what);

/* Ends the program now, rather than after its work, unless a file of this path can be written: it
 * names no directory, and the one that it lies in can be written. A path of NULL is fine. */
void option_check_file(const char *name, const char *path);

/* The options as texts for a checkpoint; returns their number. They live until the next call. */
int options_texts(const Command *command, const void *options, FileMetadata texts[OPTIONS_MAX]);

/* The place of a value among choices. */
int choice_index(const char *const *choices, const char *value);

/* What several programs choose from, and what it means. */
extern const char *const feature_names[];   /* by FeatureMap */
extern const char *const device_names[];    /* auto: device_best's */
extern const char *const precision_names[]; /* by Precision */
Device *device_of(const char *name);

#endif
