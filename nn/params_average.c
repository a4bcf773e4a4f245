/* to <- to + weight (from - to) for all weights, running statistics and random projections: a copy,
 * or a step of an exponential moving average, in one pass over the flat values. Two Params whose
 * weights were registered in one order have one layout, joined weights and padding included; the
 * padding, 0 in both, stays 0. */
#include "nn/internal.h"
#include "ops/kernels.h"

void average_values_plain(Real *to, const Real *from, Real weight, int64_t n)
{
    EACH(i, n)
        to[i] += weight * (from[i] - to[i]);
}

typedef struct Described {
    char text[NAME_BYTES + 100];
} Described;

static Described described(const Tensor *tensor, bool is_joined)
{
    Described result = { "no tensor" };
    if (tensor)
        snprintf(result.text, sizeof result.text, "%s %s%s", tensor->name,
                 shape_text(tensor->shape).text, is_joined ? ", joined" : "");
    return result;
}

static void check_counterparts(const Tensor *to, bool to_joined, const Tensor *from,
                               bool from_joined)
{
    if (to && from && strcmp(to->name, from->name) == 0 && shape_equal(to->shape, from->shape) &&
        to_joined == from_joined)
        return;
    error_raise("params_average: to has %s where from has %s; expected equal names and shapes, "
                "registered in one order",
                described(to, to_joined).text, described(from, from_joined).text);
}

static void check_layouts(const Params *to, const Params *from)
{
    const Weight *a = to->weights, *b = from->weights;
    while (a || b) {
        check_counterparts(a ? &a->tensor : NULL, a && a->is_whole, b ? &b->tensor : NULL,
                           b && b->is_whole);
        a = a->next;
        b = b->next;
    }
    const Constant *c = saved_constant(to->constants), *d = saved_constant(from->constants);
    while (c || d) {
        check_counterparts(c ? &c->tensor : NULL, false, d ? &d->tensor : NULL, false);
        c = saved_constant(c->next);
        d = saved_constant(d->next);
    }
}

static void average(const Tensor *to, const Tensor *from, Real weight)
{
    if (weight == 1)
        device_copy(to->device, to->data, from->data, tensor_bytes(to));
    else
        op_kernels_on(to->device, TENSOR_REAL)
            ->average_values(to->data, from->data, weight, tensor_count(to));
}

void params_average(Params *to, Params *from, double weight)
{
    error_need("params_average", "to", to);
    error_need("params_average", "from", from);
    if (!(weight >= 0 && weight <= 1))
        error_raise("params_average: weight is %g, expected 0 to 1", weight);
    if (to == from)
        error_raise("params_average: to and from are the same Params, expected two");
    if (to->device != from->device)
        error_raise("params_average: to is on the device %s, from on %s, expected one device",
                    device_name(to->device), device_name(from->device));
    check_layouts(to, from);
    const Tensor *source = params_flat_values(from);
    average(params_flat_values(to), source, (Real)weight);
    for (Constant *c = saved_constant(to->constants), *d = saved_constant(from->constants); c;
         c = saved_constant(c->next), d = saved_constant(d->next))
        average(&c->tensor, &d->tensor, (Real)weight);
    params_written(to);
}
