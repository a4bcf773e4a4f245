/* store: to <- from, for a state that a later step begins with.
 * store_i32: to_r <- from_r or, with columns, to_{r, columns_r} <- from_r, for integers that
 * outlive the step that computes them. As in tensor_write_i32, the known bounds of to's values
 * (`bounds`) are updated and checked against the bounds that operations need (`required_bounds`).
 * For a captured step this is repeated before each replay, since from may have been written
 * meanwhile. */
#include "ops/kernels.h"
#include "ops/shared/indices.h"
#include "tensor/internal.h"

typedef struct Store {
    Tape *tape;
    Tensor *to, *from;
    bool partial; /* some elements of to are not overwritten */
} Store;

void store_integers_plain(int32_t *to, const int32_t *columns, const int32_t *from, int64_t R,
                          int64_t N)
{
    for (int64_t r = 0; r < R; r++)
        to[columns ? r * N + columns[r] : r] = from[r];
}

/* --------------------------------------------------------------------------------------- bounds */
static void note_bounds(const Store *store)
{
    IntegerBounds *old = &tensor_root(store->to)->bounds;
    IntegerBounds bounds = tensor_root(store->from)->bounds;
    bounds.spanning = false;
    if (store->partial)
        bounds = bounds_of_both(*old, bounds);
    *old = bounds;
}

static void check_order_not_required(const Store *store)
{
    if (tensor_root(store->to)->required_bounds.spanning)
        tape_error(store->tape, "op_store_i32: the operations that use to need ascending integers; "
                                "only tensor_write_i32 checks their order");
}

static void before_replay(void *context)
{
    const Store *store = context;
    check_order_not_required(store);
    check_bounds_in(store->tape, "op_store_i32", "from", "to", tensor_root(store->from)->bounds,
                    tensor_root(store->to)->required_bounds);
    note_bounds(store);
}

static void check_bounds(const Store *store)
{
    const IntegerBounds required = tensor_root(store->to)->required_bounds;
    check_order_not_required(store);
    if (required.known)
        op_check_indices(store->tape, "op_store_i32: from", store->from, required.min, required.max,
                         "as the operations that use to need");
}

/* ------------------------------------------------------------------------------------ arguments */
static void check_nothing_recorded(Tape *tape, const char *operation)
{
    if (tape_has_recorded(tape))
        tape_error(tape,
                   "%s: operations are recorded whose backward pass might find other values than "
                   "the pass before; store after tape_backward, or without recording",
                   operation);
}

Tensor *op_store(Tape *tape, Tensor *to, Tensor *from)
{
    tape_use(tape, "op_store: to", to);
    tape_use(tape, "op_store: from", from);
    check_nothing_recorded(tape, "op_store");
    if (!shape_equal(to->shape, from->shape))
        tape_error(tape, "op_store: to %s, from %s, expected the same shape", tensor_text(to).text,
                   tensor_text(from).text);
    if (to->type == from->type)
        device_copy(to->device, to->data, from->data, tensor_bytes(from));
    else
        op_convert(to->device, (Gradient){ to->data, false }, from->data, to->type == TENSOR_BF16,
                   tensor_count(from));
    tensor_written(to);
    tape_record(tape, (Node){ .name = "op_store" });
    return to;
}

static void check_store(Tape *tape, Tensor *to, Tensor *columns, Tensor *from)
{
    tape_use_i32(tape, "op_store_i32: to", to);
    tape_use_i32(tape, "op_store_i32: from", from);
    if (columns)
        tape_use_i32(tape, "op_store_i32: columns", columns);
    check_nothing_recorded(tape, "op_store_i32");
    if (columns && !shape_equal(columns->shape, from->shape))
        tape_error(tape, "op_store_i32: columns %s, from %s, expected the same shape",
                   tensor_text(columns).text, tensor_text(from).text);
    Shape rows = to->shape;
    if (columns && rows.rank > 0)
        rows.rank--;
    if (!shape_equal(rows, from->shape) || (columns && to->shape.rank == 0))
        tape_error(tape, "op_store_i32: to %s, from %s, expected %s", tensor_text(to).text,
                   tensor_text(from).text,
                   columns ? "to to have one axis more, the columns" : "the same shape");
}

Tensor *op_store_i32(Tape *tape, Tensor *to, Tensor *columns, Tensor *from)
{
    check_store(tape, to, columns, from);
    const int64_t R = tensor_count(from), N = tensor_count(to) / R;
    const Store store = { tape, to, from, tensor_count(tensor_root(to)) > R };
    if (columns)
        op_check_indices(tape, "op_store_i32: columns", columns, 0, N - 1, "the columns of to");
    check_bounds(&store);
    op_kernels_on(to->device, TENSOR_REAL)
        ->store_integers(to->integers, columns ? columns->integers : NULL, from->integers, R, N);
    note_bounds(&store);
    if (device_is_capturing(to->device))
        device_captures(to->device)
            ->before_replay(to->device, before_replay,
                            (void *)tape_save(tape, &store, sizeof store));
    tape_record(tape, (Node){ .name = "op_store_i32" });
    return to;
}
