/* Recognition while the sound goes on: a causal model as a recurrent network, whose state has a
 * constant size (except the KV cache of softmax attention). */
#ifndef TAPEGRAD_SPEECH_STREAM_H
#define TAPEGRAD_SPEECH_STREAM_H

#include "examples/speech/model.h"

typedef struct Stream {
    const Recognizer *recognizer;
    Real samples[WINDOW + HOP]; /* that no complete frame has used up */
    int64_t count;              /* of them */
    Inputs inputs;
    TransformerState *transformer; /* of the transformer */
    LstmState lstm;                /* of the LSTM, on the recognizer's tape */
    Real logits[SYMBOLS];
} Stream;

/* max_positions: of the sound. The model is causal; recognizer outlives the stream. */
Stream stream_new(const Recognizer *recognizer, int64_t max_positions);
void stream_free(Stream *stream);

/* Appends samples [count], count <= HOP; after the last ones, stream_end until it returns false.
 * Both return whether logits have become those of the next position, which are model_forward's. */
bool stream_next(Stream *stream, const Real *samples, int64_t count);
bool stream_end(Stream *stream);

#endif
