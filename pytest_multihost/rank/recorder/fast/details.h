#pragma once
#include "core.h"

/* What is sent: as Details.of. */

static SELDOM int ask_detail(Core *self, PyObject *sent, PyObject *prefix, uint32_t *number) {
  PyObject *arguments[] = {sent, prefix};
  PyObject *found = PyObject_Vectorcall(self->details, arguments, prefix ? 2 : 1, NULL);
  if (!found) return -1;
  *number = (uint32_t)PyLong_AsUnsignedLong(found);
  Py_DECREF(found);
  return PyErr_Occurred() ? -1 : 0;
}

/* Put the sizes of a tensor into a key; 0: they do not fit, or are no numbers. */
static int read_sizes(PyObject *shape, struct detail *key) {
  if (!PyTuple_Check(shape) || PyTuple_GET_SIZE(shape) > DIMENSIONS) return 0;
  key->dimensions = PyTuple_GET_SIZE(shape);
  for (Py_ssize_t each = 0; each < key->dimensions; each++) {
    PyObject *size = PyTuple_GET_ITEM(shape, each);
    if (!PyLong_CheckExact(size)) return 0;
    key->sizes[each] = PyLong_AsLongLong(size);
    if (key->sizes[each] == -1 && PyErr_Occurred()) return 0;
  }
  return 1;
}

static int is_same(const struct detail *one, const struct detail *other) {
  return one->dtype == other->dtype && one->code == other->code && one->prefix == other->prefix &&
         one->dimensions == other->dimensions && one->more == other->more &&
         !memcmp(one->sizes, other->sizes, (size_t)one->dimensions * sizeof *one->sizes);
}

static struct detail *detail_of(Core *self, const struct detail *key) {
  size_t hash = mix(address_hash(key->dtype) + key->code, address_hash(key->prefix));
  hash = mix(hash, (size_t)key->more);
  for (Py_ssize_t each = 0; each < key->dimensions; each++)
    hash = mix(hash, (size_t)key->sizes[each]);
  return &self->detail[(hash >> 20) % DETAILS];
}

/* Put dtype and sizes of a tensor into a key without making objects of them; 0: it is an odd one. */
static int read_tensor(Core *self, PyObject *tensor, struct detail *key) {
  struct tensor read;
  if (Py_TYPE(tensor) != self->tensor_type) return 0;
  if (self->read_tensor(tensor, &read)) { /* sparse, quantized, nested, of no device, ... */
    Py_CLEAR(self->tensor_type); /* its error takes a millisecond to make: there is to be no other */
    PyErr_Clear();
    return 0;
  }
  if (read.dimensions < 0 || read.dimensions > DIMENSIONS) return 0;
  key->code = (uint32_t)read.lanes << 16 | (uint32_t)read.bits << 8 | read.code;
  key->dimensions = read.dimensions;
  for (Py_ssize_t each = 0; each < key->dimensions; each++) key->sizes[each] = read.sizes[each];
  return key->code != 0;
}

/* The same of whatever has a dtype and a shape. -1 with an exception that is the test's. */
static SELDOM int ask_tensor(PyObject *tensor, struct detail *key) {
  key->code = 0;
  Py_INCREF(tensor); /* getting an attribute may run anything */
  key->dtype = PyObject_GetAttr(tensor, text_dtype);
  PyObject *shape = key->dtype ? PyObject_GetAttr(tensor, text_shape) : NULL;
  Py_DECREF(tensor);
  int fits = shape && read_sizes(shape, key);
  Py_XDECREF(shape);
  return recover() ? -1 : fits; /* 0: no tensor, or an odd one: Python knows */
}

/* Find it among all that are known, or ask. Returns as find_detail. */
static SELDOM int find_other_detail(Core *self, PyObject *sent, PyObject *first, struct detail *key,
                                    struct detail *last) {
  PyObject *prefix = key->prefix;
  Py_XINCREF(prefix); /* its entry may go while Python runs */
  int asked = key->code ? 0 : 1; /* getting an attribute runs Python, too */
  int fits = key->code ? 1 : ask_tensor(first, key);
  struct detail *known = fits > 0 ? detail_of(self, key) : NULL;
  if (fits < 0) {
    asked = -1;
  } else if (known && known->number && is_same(known, key)) {
    key->number = known->number;
    if (key->code) *last = *key; /* holds nothing but what its entry holds */
  } else {
    asked = ask_detail(self, sent, prefix, &key->number) ? -1 : 1;
    if (asked == 1 && known) {
      Py_XINCREF(key->dtype);
      Py_XINCREF(prefix);
      PyObject *dtype = known->dtype, *other = known->prefix;
      *known = *key; /* number 0: there was no room for it, and may never be */
      Py_XDECREF(dtype);
      Py_XDECREF(other);
    }
  }
  Py_XDECREF(key->dtype);
  Py_XDECREF(prefix);
  return asked;
}

/* Return the first tensor of a list, or of a list of lists; how many more the innermost list has. */
static PyObject *first_of(PyObject *sent, Py_ssize_t *more) {
  *more = 0;
  for (int depth = 0; depth < NESTED; depth++) { /* one that holds itself has no end */
    if (!PyList_CheckExact(sent) && !PyTuple_CheckExact(sent)) break;
    if (!PySequence_Fast_GET_SIZE(sent)) break;
    *more = PySequence_Fast_GET_SIZE(sent) - 1;
    sent = PySequence_Fast_GET_ITEM(sent, 0);
  }
  return sent;
}

/* Whether what is sent is read without running anything of the user's. */
static int is_plain(Core *self, PyObject *sent) {
  Py_ssize_t more;
  return Py_TYPE(first_of(sent, &more)) == self->tensor_type;
}

/* Find the number of the text for what is sent. 1: Python has run for it; -1: with an exception. */
static int find_detail(Core *self, PyObject *sent, PyObject *prefix, struct detail *last,
                       uint32_t *number) {
  struct detail key = {.prefix = prefix};
  PyObject *first = first_of(sent, &key.more);
  if (read_tensor(self, first, &key) && last->number && is_same(last, &key)) {
    *number = last->number;
    return 0;
  }
  int asked = find_other_detail(self, sent, first, &key, last);
  *number = key.number;
  return asked;
}
