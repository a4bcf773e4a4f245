/* The recorded operations as a graph for Graphviz. */
#include "autograd/internal.h"

#include <stdlib.h>

enum { SHOWN_ELEMENTS = 4 }; /* larger tensors are shown by their shapes */

typedef struct Graph {
    FILE *file;
    const Tensor **tensors; /* that have an ellipse: the number in the graph is the place here */
    int count;
} Graph;

static bool is_output(const Tape *tape, const Tensor *tensor)
{
    for (const Node *node = tape->last_node; node; node = node->previous)
        for (int i = 0; i < NODE_OUTPUTS; i++)
            if (node->outputs[i] == tensor)
                return true;
    return false;
}

/* A line of the label: the elements of a tensor that has few. */
static void print_elements(FILE *file, const char *label, const Tensor *tensor)
{
    const int64_t count = tensor_count(tensor);
    Real elements[SHOWN_ELEMENTS];
    if (count > SHOWN_ELEMENTS || tensor->type == TENSOR_INT32 || !tensor_root(tensor)->data)
        return;
    tensor_read(tensor, elements);
    fprintf(file, "\\n%s", label);
    for (int64_t i = 0; i < count; i++)
        fprintf(file, "%s%.5g", i ? ", " : "", (double)elements[i]);
}

/* The number of the tensor's ellipse, which its first use prints. */
static int number_of(Graph *graph, const Node *node, Tensor *tensor)
{
    for (int i = 0; i < graph->count; i++)
        if (graph->tensors[i] == tensor)
            return i;
    const bool leaf = tensor_requires_grad(tensor) && !is_output(node->tape, tensor);
    fprintf(graph->file, "    tensor%d [shape=ellipse%s, label=\"%s%s%s", graph->count,
            leaf ? ", style=filled, fillcolor=lightgrey" : "", tensor->name ? tensor->name : "",
            tensor->name ? "\\n" : "", shape_text(tensor->shape).text);
    print_elements(graph->file, "", tensor);
    if (tensor_root(tensor)->has_gradient)
        print_elements(graph->file, "gradient ", tensor_gradient(tensor));
    fprintf(graph->file, "\"];\n");
    graph->tensors[graph->count] = tensor;
    return graph->count++;
}

static void print_node(Graph *graph, Node *node)
{
    const long long index = (long long)node->index;
    fprintf(graph->file, "    node%lld [shape=box, label=\"%s\"];\n", index, node->name);
    for (int i = 0; i < node_input_count(node); i++)
        if (node_input(node, i)) {
            const int number = number_of(graph, node, node_input(node, i));
            fprintf(graph->file, "    tensor%d -> node%lld;\n", number, index);
        }
    for (int i = 0; i < NODE_OUTPUTS; i++)
        if (node->outputs[i]) {
            const int number = number_of(graph, node, node->outputs[i]);
            fprintf(graph->file, "    node%lld -> tensor%d;\n", index, number);
        }
}

void tape_print_dot(const Tape *tape, FILE *file)
{
    if (!tape || !file)
        error_raise("tape_print_dot: the %s is NULL", tape ? "file" : "tape");
    int64_t tensors = 1;
    for (Node *node = tape->last_node; node; node = node->previous)
        tensors += node_input_count(node) + NODE_OUTPUTS;
    const size_t bytes = (size_t)tensors * sizeof(Tensor *);
    Graph graph = { file, memory_allocate(bytes), 0 };
    if (!graph.tensors)
        error_raise("tape_print_dot: %s", device_exhausted(tape->device, bytes).text);
    fprintf(file, "digraph tape {\n    node [fontname=\"sans-serif\", fontsize=11];\n");
    for (Node *node = tape->last_node; node; node = node->previous)
        print_node(&graph, node);
    fprintf(file, "}\n");
    free(graph.tensors);
}
