/* Plans: a head, nodes and texts in the bytes that compcache/numba/exports/plan.py writes into exported code. */
#include "objects.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t magic;
    uint32_t version;
    uint32_t functions; /* how many functions the table must have at least */
    uint32_t node_count;
    uint32_t parameters;
    uint32_t result;
    uint32_t function; /* the offset of its name in the texts */
    uint32_t reserved;
} Head;

extern const uint32_t function_count;
static PyObject *plans; /* {bytes: the address, as int} */

static Plan *make_plan(const char *data, uint64_t size) {
    const Head *head = (const Head *)data;
    const uint64_t nodes = sizeof *head + (uint64_t)head->node_count * sizeof(Node);
    char *copy = malloc(size + 1);
    Plan *plan = malloc(sizeof *plan);
    PyObject **cached = calloc(head->node_count + 1, sizeof *cached);
    Items *items = calloc(head->node_count + 1, sizeof *items);
    if (copy == NULL || plan == NULL || cached == NULL || items == NULL) {
        free(copy);
        free(plan);
        free(cached);
        free(items);
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(copy, data, size);
    copy[size] = '\0';
    *plan = (Plan){
        .nodes = (const Node *)(copy + sizeof *head), .texts = copy + nodes, .cached = cached, .items = items,
        .node_count = head->node_count, .parameters = head->parameters, .result = head->result,
        .function = copy + nodes + head->function,
    };
    for (uint32_t i = 0; i < head->node_count; i++) {
        items[i] = (Items){plan, &plan->nodes[i]};
    }
    return plan;
}

Plan *prepare_plan(const void *data, uint64_t size) {
    const Head *head = data;
    if (size < sizeof *head || head->magic != PLAN_MAGIC || head->version == 0 || head->version > PLAN_VERSION || head->functions > function_count) {
        PyErr_SetString(PyExc_ImportError, "an exported kernel has a plan of another version of compcache; export the kernel again");
        return NULL;
    }
    PyObject *key = PyBytes_FromStringAndSize(data, (Py_ssize_t)size);
    if (key == NULL || (plans == NULL && (plans = PyDict_New()) == NULL)) {
        Py_XDECREF(key);
        return NULL;
    }
    Plan *plan = NULL;
    PyObject *known = PyDict_GetItemWithError(plans, key);
    if (known != NULL) {
        plan = PyLong_AsVoidPtr(known);
    }
    else if (!PyErr_Occurred()) {
        plan = make_plan(data, size);
        PyObject *address = plan != NULL ? PyLong_FromVoidPtr(plan) : NULL;
        if (address == NULL || PyDict_SetItem(plans, key, address) != 0) {
            plan = NULL; /* no memory */
        }
        Py_XDECREF(address);
    }
    Py_DECREF(key);
    return plan;
}

PyObject *class_of(Plan *plan, const Node *node) {
    PyObject **cached = cached_of(plan, node);
    if (*cached == NULL) {
        const char *module = text_of(plan, node->text);
        PyObject *found = PyImport_ImportModule(module);
        PyObject *path = PyUnicode_FromString(module + strlen(module) + 1);
        PyObject *names = path != NULL ? PyObject_CallMethod(path, "split", "s", ".") : NULL;
        for (Py_ssize_t i = 0; found != NULL && names != NULL && i < PyList_Size(names); i++) {
            PyObject *next = PyObject_GetAttr(found, PyList_GetItem(names, i));
            Py_DECREF(found);
            found = next;
        }
        Py_XDECREF(path);
        Py_XDECREF(names);
        *cached = found;
    }
    return *cached;
}
