/* Command lines from tables: one row per option holds the field of its value, the allowed values
 * and the text of --help. Checkpoints save the options. */
#ifndef TAPEGRAD_OPTIONS_H
#define TAPEGRAD_OPTIONS_H

#include <tapegrad.h>

typedef enum {
    WHOLE,      /* int64_t */
    NUMBER,     /* double */
    CHOICE,     /* const char *, one of the choices */
    FLAG,       /* bool */
    STRING,     /* const char *, any text */
    FOLDER,     /* likewise */
    PATH,       /* likewise, a file that is written */
    INPUT,      /* likewise, one that is read */
    CHECKPOINT, /* an INPUT whose options replace the preset's: --load, --resume */
} OptionKind;

/* What may change a value, and whether --evaluate, which trains nothing, reads it. Checkpoints save
 * the options of all scopes to OF_GOAL. */
typedef enum {
    OF_MODEL,    /* a checkpoint fixes it, that of --from too */
    OF_KIND,     /* a checkpoint fixes it, but not that of --from: the kind of attention */
    OF_DATA,     /* a resumed checkpoint fixes it */
    OF_TRAINING, /* likewise; --evaluate refuses it */
    OF_GOAL,     /* the length of the training, which a resumed run may extend; likewise refused */
    OF_PROGRESS, /* of this run; likewise refused */
    OF_RUN,      /* of this run */
} OptionScope;

typedef struct Option {
    const char *name;
    OptionKind kind;
    OptionScope scope;
    size_t offset;              /* of the field in the program's struct */
    double low, high;           /* of WHOLE and NUMBER, inclusive */
    const char *standard;       /* the default; NULL: 0, or the first choice */
    const char *const *choices; /* of CHOICE; of PATH the endings, or NULL; NULL ends them */
    const char *help;
    bool later; /* earlier checkpoints lack it: then it has its default */
} Option;

enum { OPTIONS_MAX = 64, OPTIONS_TABLES = 9 };

typedef struct OptionTable {
    const Option *rows;
    int count;
} OptionTable;
/* clang-format off */
#define TABLE(rows) { rows, sizeof(rows) / sizeof *(rows) }
/* clang-format on */

/* A program, or a subcommand with options of its own. */
typedef struct Command Command;
struct Command {
    const char *about;                  /* the first lines of --help; @ is the program's name */
    const char *argument;               /* what FILE, which is no option, is; NULL: none */
    OptionTable tables[OPTIONS_TABLES]; /* fewer than OPTIONS_MAX options; the rest empty */
    /* The command that writes the checkpoints, or this one itself, which then has a row for every
     * field that presets set, and the following fields. */
    const Command *trainer;
    const char *program;        /* its name in checkpoints */
    size_t size;                /* of its struct */
    const char *const *presets; /* "layers=2 heads=6 ...": what differs from the defaults, one per
                                   choice of --preset */
};

/* The values on the command line as texts, by row: "" for a flag, NULL for an option not given. */
typedef struct Given {
    const Command *command;
    const char *texts[OPTIONS_MAX];
    const char *argument; /* that is no option */
} Given;

/* Fills the program's struct from the preset or, if --load, --resume or --from gives one, from a
 * checkpoint and the preset that it names, then from the command line. A bad value, one that
 * contradicts the checkpoint, or a file that would be written twice, or read as well, is reported
 * in one sentence and ends the program with status BAD_USE; --help ends it with 0. A checkpoint
 * that is read may be the one that --save writes, but for that of --from. */
Given options_parse(const Command *command, int argc, char **argv, void *options);

/* Likewise from a checkpoint and the preset that it names alone. */
void options_of_checkpoint(const Command *command, const char *path, void *options);

/* The value of an option on the command line as text, or NULL. */
const char *option_given(const Given *given, const char *name);

/* Ends the program if one of the options, as "heads layers", is given: "--NAME VALUE: expected
 * without" and the formatted text, as "--model lstm, which has none". */
__attribute__((format(printf, 3, 4))) void options_refuse(const Given *given, const char *names,
                                                          const char *format, ...);

/* Ends the program if an option names this file, which is read, to be written. */
void options_check_input(const Given *given, const char *path);

/* Ends the program before its work rather than after it if no file can be written at the path, as
 * tensor_file_can_save finds it. NULL is accepted. */
void option_check_file(const char *name, const char *path);

/* The options as texts for a checkpoint, valid until the next call; returns their number. */
int options_texts(const Command *command, const void *options, FileMetadata texts[OPTIONS_MAX]);

/* The index of a value in choices; of the NULL that ends them if it is none. */
int choice_index(const char *const *choices, const char *value);

/* ------------------------------------------------------- the options of every program that trains
 * The first member of its struct. */
typedef struct TrainingOptions {
    /* The model: a checkpoint fixes it. */
    const char *preset, *attention, *features;
    int64_t layers, heads, head_dim, feed_forward;
    /* The training: a resumed checkpoint fixes it. */
    int64_t batch, seed;
    double learning_rate, clip, dropout;
    int64_t steps; /* in total, including those before a resume */
    /* This run. */
    const char *device, *precision, *log, *plot, *save, *resume, *load;
    int64_t threads, save_every, score_every, profile;
    bool evaluate, eager, quiet;
} TrainingOptions;

/* The rows of these options, except where texts or choices differ. */
enum { RUN_LOAD = 4, RUN_PRECISION = 6, RUN_PROFILE = 8, RUN_QUIET, RUN_ROWS }; /* in run_rows */
extern const Option model_rows[5], training_rows[3], run_rows[RUN_ROWS], device_rows[2];

/* Ends the program if options of training are given with --evaluate or --load is not, --features or
 * --rounds with attention that has none, --save-every without --save, or if files cannot be
 * written. */
void training_check(const TrainingOptions *options, const Given *given);

/* Ends the program if both --steps and --epochs are given; sets the steps to 0 if --epochs is,
 * which replaces those of a preset or a checkpoint. */
void training_check_epochs(TrainingOptions *options, const Given *given);

/* The device of --device, after --threads is applied. */
Device *training_device(const TrainingOptions *options);

/* The precision of --precision. Prints to standard error the choice of auto, and that bf16 is slow
 * where the device lacks instructions for it. */
Precision training_precision(const TrainingOptions *options, const Device *device);

/* Choices that several programs share. */
extern const char *const feature_names[];        /* by FeatureMap, Features */
extern const char *const step_precision_names[]; /* by Precision: of decode steps */
extern const char *const plot_endings[];         /* of curves: .svg */

#endif
