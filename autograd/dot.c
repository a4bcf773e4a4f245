/* The recorded operations as a graph for Graphviz. */
#include "autograd/internal.h"

static bool is_output(const Tape *tape, const Tensor *tensor)
{
    for (const Node *node = tape->last_node; node; node = node->previous)
        for (int i = 0; i < NODE_OUTPUTS; i++)
            if (node->outputs[i] == tensor)
                return true;
    return false;
}

/* The ellipse of an input or an output of the node, and the edge between them. */
static void print_tensor(FILE *file, const Node *node, const Tensor *tensor, bool output)
{
    if (!tensor)
        return;
    const bool leaf = tensor_requires_grad(tensor) && !is_output(node->tape, tensor);
    fprintf(file, "    \"%p\" [shape=ellipse%s, label=\"%s%s%s\"];\n", (const void *)tensor,
            leaf ? ", style=filled, fillcolor=lightgrey" : "", tensor->name ? tensor->name : "",
            tensor->name ? "\\n" : "", shape_text(tensor->shape).text);
    if (output)
        fprintf(file, "    node%lld -> \"%p\";\n", (long long)node->index, (const void *)tensor);
    else
        fprintf(file, "    \"%p\" -> node%lld;\n", (const void *)tensor, (long long)node->index);
}

void tape_print_dot(const Tape *tape, FILE *file)
{
    if (!tape || !file)
        error_raise("tape_print_dot: the %s is NULL", tape ? "file" : "tape");
    fprintf(file, "digraph tape {\n    node [fontname=\"sans-serif\", fontsize=11];\n");
    for (Node *node = tape->last_node; node; node = node->previous) {
        fprintf(file, "    node%lld [shape=box, label=\"%s\"];\n", (long long)node->index,
                node->name);
        for (int i = 0; i < node_input_count(node); i++)
            print_tensor(file, node, node_input(node, i), false);
        for (int i = 0; i < NODE_OUTPUTS; i++)
            print_tensor(file, node, node->outputs[i], true);
    }
    fprintf(file, "}\n");
}
