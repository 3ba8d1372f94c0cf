#pragma once
#include "threads.h"

/* Core: what the wrappers of one recorder share. */

struct place {        /* of code, and of the user's lines in it; two or more in a line of the cache */
  PyCodeObject *code; /* NULL: free */
  int lasti;          /* LIBRARY: all of it is somebody else's */
  struct where where;
};
enum { LIBRARY = -2 };

struct way { /* that was walked last: from what was called out to the user's line */
  int steps; /* 0: none */
  int lasti[STEPS];
  PyCodeObject *code[STEPS]; /* all of them stand among the places, and are alive */
  struct where where;
  unsigned long age;
};

struct detail {
  PyObject *dtype;  /* or NULL, and what the interchange of tensors calls it */
  uint32_t code, number; /* number 0: free */
  PyObject *prefix;
  Py_ssize_t dimensions, more;
  long long sizes[DIMENSIONS];
};

struct tensor { /* DLTensor of DLPack 1, whose table of functions torch.Tensor offers */
  void *data;
  int32_t device[2], dimensions;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *sizes, *strides;
  uint64_t offset;
};

struct tensor_functions { /* DLPackExchangeAPI */
  uint32_t major, minor;
  void *older, *others[3];
  int (*read_tensor)(void *tensor, struct tensor *read);
};

struct layout { /* in words of eight bytes: where the records begin, and the one that nobody reads */
  long long first, records, no_place;
};
enum { WORDS = sizeof(struct record) / 8 };

typedef struct {
  PyObject_HEAD PyObject *recorder, *works, *held, *details;
  Local *local;
  PyTypeObject *page_type, *tensor_type; /* NULL: not every tensor's sizes can be read in C */
  int (*read_tensor)(void *tensor, struct tensor *read);
  struct layout layout;
  Py_ssize_t page_at, on_begin_at, words_at, numbers_at, texts_at; /* of what the two have in slots */
  PyObject *page, *texts, *words; /* what is cached below is true of; NULL: nothing */
  Py_buffer view;
  unsigned long age; /* a higher one with another page: numbers of texts mean something else there */
  Py_ssize_t known;
  struct place places[PLACES];
  struct detail detail[DETAILS];
} Core;

static PyObject *slot(PyObject *owner, Py_ssize_t at) {
  return *(PyObject **)((char *)owner + at);
}

/* Return where a class with __slots__ keeps an attribute; -1 with an exception if it does not. */
static Py_ssize_t slot_offset(PyTypeObject *type, const char *name) {
  PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
  if (!found) return -1;
  Py_ssize_t at = -1;
  if (Py_IS_TYPE(found, &PyMemberDescr_Type)) {
    PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
    if (member->type == T_OBJECT_EX) at = member->offset;
  }
  Py_DECREF(found);
  if (at < 0) PyErr_Format(PyExc_TypeError, "%s.%s is no slot", type->tp_name, name);
  return at;
}

static SELDOM void core_forget(Core *self) {
  self->age++;
  self->known = 0;
  for (int each = 0; each < PLACES; each++) Py_CLEAR(self->places[each].code);
  for (int each = 0; each < DETAILS; each++) {
    self->detail[each].number = 0;
    Py_CLEAR(self->detail[each].dtype);
    Py_CLEAR(self->detail[each].prefix);
  }
  Py_CLEAR(self->page);
  Py_CLEAR(self->texts);
}

static void core_unmap(Core *self) {
  if (self->words) PyBuffer_Release(&self->view);
  Py_CLEAR(self->words);
}

/* Let a page count with what is asked here at no cost. Groups that it counts already go on as before. */
static SELDOM void count_in_c(Core *self, PyObject *page) {
  PyObject *numbers = slot(page, self->numbers_at);
  if (numbers && !Py_IS_TYPE(numbers, &Counter_Type)) {
    PyObject *next = PyIter_Next(numbers);
    PyObject *counter = next ? PyObject_CallOneArg((PyObject *)&Counter_Type, next) : NULL;
    if (counter) PyObject_SetAttr(page, text_numbers, counter);
    Py_XDECREF(next);
    Py_XDECREF(counter);
  }
  PyObject_SetAttr(page, text_counting, (PyObject *)&Counter_Type);
  PyErr_Clear();
}

static SELDOM int core_map_anew(Core *self, PyObject *page) {
  if (!page || Py_TYPE(page) != self->page_type) return 0;
  PyObject *words = slot(page, self->words_at), *texts = slot(page, self->texts_at);
  if (!words || !texts) return 0;
  if (page != self->page || texts != self->texts) {
    core_forget(self);
    Py_INCREF(page);
    self->page = page;
    Py_INCREF(texts);
    self->texts = texts;
    count_in_c(self, page);
  }
  if (words != self->words) {
    core_unmap(self);
    if (PyObject_GetBuffer(words, &self->view, PyBUF_FULL)) {
      PyErr_Clear();
      return 0;
    }
    Py_INCREF(words);
    self->words = words;
    if (self->view.len < (self->layout.no_place + WORDS) * 8) core_unmap(self);
  }
  return self->words != NULL;
}

/* Follow the recorder to the page it has now. 0: there is none to write to; no exception is set. */
static int core_map(Core *self) {
  if (!self->recorder) return 0; /* the collector has cleared it */
  PyObject *page = slot(self->recorder, self->page_at);
  if (page && page == self->page && self->words && slot(page, self->words_at) == self->words &&
      slot(page, self->texts_at) == self->texts)
    return 1;
  return core_map_anew(self, page);
}

static int is_place(Core *self, long long at) {
  return at >= self->layout.first && at <= self->layout.no_place;
}

static struct record *record_at(Core *self, long long at) {
  return (struct record *)((uint64_t *)self->view.buf + at);
}

/* Stores are made in their order: who reads the page does so at any moment. */
static void put(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

static void core_end(Core *self, long long at) {
  if (core_map(self) && is_place(self, at)) put(&record_at(self, at)->ended, now_ns());
}

static void core_leave(Core *self, long long at) {
  if (core_map(self) && is_place(self, at)) put(&record_at(self, at)->waited, 0);
}

/* Return the next number of an iterator; -1 with an exception. */
static long long next_of(PyObject *iterator) {
  if (Py_IS_TYPE(iterator, &Counter_Type)) return ((Counter *)iterator)->next++;
  PyObject *number = PyIter_Next(iterator);
  if (!number) {
    if (!PyErr_Occurred()) PyErr_SetNone(PyExc_StopIteration);
    return -1;
  }
  long long value = PyLong_AsLongLong(number);
  Py_DECREF(number);
  return value;
}
