/* Training as the programs do it: replayed steps, with checkpoints and reports. Under mpirun each
 * process computes a part of every batch, so a run does not depend on the number of processes. */
#ifndef TAPEGRAD_TRAINING_H
#define TAPEGRAD_TRAINING_H

#include "examples/shared/report.h"

/* The program's part of a step, whose functions receive context. */
typedef struct TrainingStep {
    void *context;
    void (*next_batch)(void *context, int64_t step); /* of micro-batches, their number from 1 on */
    Tensor *(*loss)(void *context);
    /* Writes the values of the log before the learning rate; due: --score-every. Returns false if
     * the step is not logged. */
    bool (*score)(void *context, bool due, double *values);
} TrainingStep;

typedef struct Training {
    const Command *command;
    const TrainingOptions *options; /* the first member of the command's struct */
    TrainingStep step;
    int64_t steps; /* in total, including those before a resume */
    Params *params;
    Optimizer *optimizer;
    Tape *tape, *scoring;  /* of the steps; of evaluations: no gradients, no dropout */
    int64_t done, first;   /* the last completed step; this run's first one */
    double seconds;        /* of this run's steps */
    DistPart part;         /* of the batch's rows: this process computes them */
    int64_t micro_batches; /* 1: whose gradients an update accumulates, without replaying */
    bool clip_each;        /* --clip is of each weight's gradient by itself */
    bool enough;           /* set by score: the training ends before its steps are done */
    bool failed;           /* the final checkpoint or the log could not be written */
    TapeProfile *profile;  /* of --profile, while it runs */
    Report *report;        /* of training_run; training_end frees it */
} Training;

/* Opens the device, makes params and tapes. The caller then makes its model and optimizer. */
Training training_new(const Command *command, const TrainingOptions *options, int64_t steps,
                      TrainingStep step);
void training_free(Training *training);

/* Matrices by Muon, scaled so that AdamW's learning rate and weight decay serve, other weights by
 * AdamW: config is of both. */
Optimizer *training_muon(Params *params, AdamConfig config);

/* Loads the checkpoint of --resume, or of --load: for training its weights alone. Ends the program
 * if a resumed run has completed more steps than this one is to have. */
void training_load(Training *training);

/* Trains until all steps are done or a signal stops it, and saves. A save that fails is reported;
 * the next one may succeed. */
void training_run(Training *training, ReportConfig config);

/* Draws the picture, when the results are printed: the format and its values say them again in the
 * subtitle. Returns the program's exit status. */
__attribute__((format(printf, 3, 4))) int training_end(const Training *training, const char *title,
                                                       const char *format, ...);

/* values [count <= 7] = their mean over the ranks, of this weight. Collective. */
void training_mean(double *values, int count, double weight);

#endif
