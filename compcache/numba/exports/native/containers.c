/* Lists, and containers whose items arrive and leave as those of a list: typed lists and dictionaries, sets. */
#include "objects.h"

#include <stdlib.h>

/* -------------------------------------------------------------------------------------------------------- arguments */

static void free_items(void *data, size_t Py_UNUSED(size), void *info) {
    const Items *items = info;
    const Node *node = items->node, *item = &items->plan->nodes[node->first];
    for (Py_ssize_t i = 0; i < ((const ListPayload *)data)->size; i++) {
        drop(items->plan, item, (char *)data + node->detail + i * node->itemsize);
    }
    free(data);
}

int unbox_list(Plan *plan, const Node *node, PyObject *object, ListValue *value) {
    if (!PyList_Check(object)) {
        return 0;
    }
    const Node *item = &plan->nodes[node->first];
    const Py_ssize_t size = PyList_Size(object);
    char *payload = calloc(1, node->detail + (size_t)(size > 0 ? size : 1) * node->itemsize);
    value->memory = payload != NULL ? new_block(payload, 0, free_items, &plan->items[node - plan->nodes]) : NULL;
    if (value->memory == NULL) {
        free(payload);
        PyErr_NoMemory();
        return 0;
    }
    value->parent = object;
    *(ListPayload *)payload = (ListPayload){.size = size, .allocated = size > 0 ? size : 1};
    for (Py_ssize_t i = 0; i < size; i++) { /* converting an item may run code that shortens the list */
        PyObject *found = PySequence_GetItem(object, i);
        if (found == NULL) {
            return 0;
        }
        const int ok = unbox(plan, item, found, payload + node->detail + i * node->itemsize);
        Py_DECREF(found);
        if (!ok) {
            return 0;
        }
    }
    return 1;
}

/* Whether an object is one of Numba's containers. */
static int is_numbas(PyObject *object) {
    return PyObject_HasAttrString((PyObject *)Py_TYPE(object), "_numba_type_");
}

/* What a container holds, as a list; NULL, perhaps without an exception, for one of another kind. */
static PyObject *items_of(const Node *node, PyObject *object) {
    if (node->kind == KIND_SET) {
        return PyAnySet_Check(object) ? PySequence_List(object) : NULL;
    }
    if (node->kind == KIND_TYPED_LIST) {
        return PyList_Check(object) || is_numbas(object) ? PySequence_List(object) : NULL;
    }
    PyObject *pairs = PyDict_Check(object) || is_numbas(object) ? PyObject_CallMethod(object, "items", NULL) : NULL;
    PyObject *items = pairs != NULL ? PySequence_List(pairs) : NULL;
    Py_XDECREF(pairs);
    return items;
}

int unbox_container(Plan *plan, const Node *node, PyObject *object, ListValue *value) {
    PyObject *items = items_of(node, object);
    const int ok = items != NULL && unbox_list(plan, node, items, value);
    value->parent = object;
    Py_XDECREF(items);
    return ok;
}

/* ---------------------------------------------------------------------------------------------------------- results */

static PyObject *new_list(Plan *plan, const Node *node, const ListValue *value) {
    char *payload = value->memory->data;
    const Py_ssize_t size = ((const ListPayload *)payload)->size;
    const Node *item = &plan->nodes[node->first];
    PyObject *list = PyList_New(size);
    for (Py_ssize_t i = 0; list != NULL && i < size; i++) {
        PyObject *made = box(plan, item, payload + node->detail + i * node->itemsize);
        if (made == NULL || PyList_SetItem(list, i, made) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

PyObject *box_list(Plan *plan, const Node *node, const ListValue *value) {
    if (value->parent != NULL) { /* an argument: `leave` tells it of changes */
        return Py_NewRef(value->parent);
    }
    return new_list(plan, node, value);
}

PyObject *box_container(Plan *plan, const Node *node, const ListValue *value) {
    PyObject *items = new_list(plan, node, value);
    if (items == NULL || node->kind == KIND_TYPED_LIST) {
        return items;
    }
    PyObject *container = node->kind == KIND_SET ? PySet_New(items) : PyDict_New();
    if (container != NULL && node->kind == KIND_DICTIONARY && PyDict_MergeFromSeq2(container, items, 1) != 0) {
        Py_CLEAR(container);
    }
    Py_DECREF(items);
    return container;
}

/* ------------------------------------------------------------------------------------------------ changed arguments */

static int replace_items(const Node *node, PyObject *container, PyObject *items) {
    if (node->kind == KIND_LIST) {
        return PyList_SetSlice(container, 0, PyList_Size(container), items) == 0;
    }
    const char *method = node->kind == KIND_TYPED_LIST ? "extend" : "update";
    PyObject *cleared = PyObject_CallMethod(container, "clear", NULL);
    PyObject *filled = cleared != NULL ? PyObject_CallMethod(container, method, "O", items) : NULL;
    Py_XDECREF(cleared);
    Py_XDECREF(filled);
    return filled != NULL;
}

/* Nothing but the kernel can refer to the container that was made of this list, and nothing but both to the list. A kernel that raised an
 * exception has kept its references. */
void drop_container(MemInfo *items) {
    MemInfo *container = items != NULL ? items->container : NULL;
    if (container != NULL) {
        container->references = 1;
        release_block(container);
        items->references = 1;
    }
    release_block(items);
}

int reflect(Plan *plan, const Node *node, char *value) {
    if (node->kind == KIND_TUPLE || node->kind == KIND_NAMED_TUPLE) {
        for (uint32_t i = 0; i < node->count; i++) {
            const Node *item = &plan->nodes[node->first + i];
            if (!reflect(plan, item, value + item->offset)) {
                return 0;
            }
        }
    }
    if (node->kind == KIND_OPTIONAL) {
        return !(value[node->detail] & 1) || reflect(plan, &plan->nodes[node->first], value);
    }
    if (node->kind != KIND_LIST && node->kind < KIND_TYPED_LIST) {
        return 1;
    }
    ListValue given = *(ListValue *)value;
    ListPayload *payload = given.memory->data;
    if (!payload->is_dirty) {
        return 1;
    }
    payload->is_dirty = 0;
    PyObject *parent = given.parent;
    given.parent = NULL;
    PyObject *items = box(plan, node, (char *)&given);
    const int done = items != NULL && replace_items(node, parent, items);
    Py_XDECREF(items);
    return done;
}
