#pragma once
#include "where.h"
#include "details.h"

/* Prepared calls. */

struct entry {
  PyObject *pg;       /* torch's group: a weak reference; NULL: free */
  int goes_on;        /* whether a call returns at once: what is sent can be read while others work */
  long long one, two; /* root; or peer and tag */
  PyObject *group, *prefix;
  PyObject *sequence, *counts; /* of its like, or NULL; and the group's collectives */
  struct call call;
  long long count_at; /* in words of four bytes */
  unsigned long age;
  struct detail last; /* what was sent last, if anything */
  struct way way;     /* where it was called last */
};

static SELDOM void entry_clear(struct entry *self) {
  self->last.number = 0;
  self->way.steps = 0;
  Py_CLEAR(self->pg);
  Py_CLEAR(self->group);
  Py_CLEAR(self->sequence);
  Py_CLEAR(self->counts);
  Py_CLEAR(self->prefix);
}

static int entry_is_of(struct entry *self, PyObject *pg) {
  if (!self->pg) return 0;
#if PY_VERSION_HEX >= 0x030D0000
  PyObject *found = NULL;
  int is_alive = PyWeakref_GetRef(self->pg, &found);
  if (is_alive < 0) PyErr_Clear();
  Py_XDECREF(found);
  return is_alive == 1 && found == pg;
#else
  return PyWeakref_GET_OBJECT(self->pg) == pg;
#endif
}

/* Take what Python has prepared: (Group, Call, iterator of sequences or None, prefix or None, whether
 * a call returns at once). */
static SELDOM int entry_fill(struct entry *self, PyObject *prepared) {
  PyObject *group, *call, *sequence, *prefix;
  int goes_on;
  if (!PyArg_ParseTuple(prepared, "OOOOp", &group, &call, &sequence, &prefix, &goes_on)) return -1;
  PyObject *data = PyObject_GetAttr(call, text_data), *at = PyObject_GetAttr(call, text_count_at);
  entry_clear(self);
  int fits = data && at && PyBytes_Check(data) && PyBytes_GET_SIZE(data) == sizeof self->call;
  if (fits) {
    memcpy(&self->call, PyBytes_AS_STRING(data), sizeof self->call);
    self->count_at = PyLong_AsLongLong(at);
    self->counts = PyObject_GetAttr(call, text_sequence);
    Py_INCREF(group);
    self->group = group;
    if (sequence != Py_None) {
      Py_INCREF(sequence);
      self->sequence = sequence;
    }
    if (prefix != Py_None) {
      Py_INCREF(prefix);
      self->prefix = prefix;
    }
    self->goes_on = goes_on;
    self->pg = PyObject_GetAttr(group, text_pg);
  } else if (!PyErr_Occurred()) {
    PyErr_SetString(PyExc_TypeError, "this is no prepared call");
  }
  Py_XDECREF(data);
  Py_XDECREF(at);
  if (self->pg && !PyWeakref_Check(self->pg)) PyErr_SetString(PyExc_TypeError, "no weak reference");
  if (!PyErr_Occurred()) return 0;
  entry_clear(self);
  return -1;
}

/* Note a call: as SlotPage.begin. Whatever fails, it is noted nowhere. */
static long long core_note(Core *self, PyThreadState *thread, struct entry *entry,
                           const struct where *where, long long sequence, uint32_t detail) {
  const struct layout *is = &self->layout;
  long long at = is->no_place, number = -1;
  uint64_t began = now_ns();
  PyObject *numbers = core_map(self) ? slot(self->page, self->numbers_at) : NULL;
  if (!numbers || entry->age != self->age) goto done; /* another page: its texts are others */
  if (!sequence) {
    sequence = next_of(entry->counts);
    if (sequence < 0) goto done;
    if (entry->count_at >= 0 && entry->count_at / 2 < is->no_place + WORDS)
      __atomic_store_n((uint32_t *)self->view.buf + entry->count_at, (uint32_t)sequence,
                       __ATOMIC_RELEASE);
  }
  struct record *record = NULL;
  for (long long tries = 0; tries <= is->records && !record; tries++) {
    number = next_of(numbers);
    if (number < 0) goto done;
    struct record *next = record_at(self, is->first + number % is->records * WORDS);
    if (next->ended) record = next; /* else it is still open */
  }
  if (!record) goto done;
  put(&record->began, began);
  put(&record->ended, 0);
  record->waited = began;
  record->sequence = (uint32_t)sequence;
  record->detail = detail;
  record->thread = (uint32_t)thread->native_thread_id; /* right after a fork, too */
  record->where = *where;
  record->flags = 0;
  record->call = entry->call;
  put(&record->number, (uint64_t)number + 1);
  at = is->first + number % is->records * WORDS;
done:
  if (at == is->no_place) PyErr_Clear(); /* an error in recording is no error of the test */
  return at;
}

/* Say that this thread waits for what is noted at a place: as Recorder.wait. -1 with an exception
 * that is the test's. */
static int core_wait(Core *self, PyThreadState *thread, struct way *way, long long at) {
  struct where where;
  if (find_where(self, thread, way, &where) < 0) {
    return recover();
  } else if (core_map(self) && is_place(self, at)) {
    struct record *record = record_at(self, at);
    record->thread = (uint32_t)thread->native_thread_id;
    record->where = where;
    put(&record->waited, now_ns());
  }
  return 0;
}

/* Tell Python of the exception that is set, which stays set unless a graver one comes:
 * recorder.fail(at, error), or, of a work, works._fail_wait(work, (at,), error). */
static SELDOM void tell_error(Core *self, PyObject *work, long long at) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject *error = PyErr_GetRaisedException();
#else
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  if (traceback && error) PyException_SetTraceback(error, traceback);
#endif
  PyObject *place = Py_BuildValue(work ? "(L)" : "L", at), *done = NULL;
  if (place && error)
    done = work ? PyObject_CallMethodObjArgs(self->works, text_fail_wait, work, place, error, NULL)
                : PyObject_CallMethodObjArgs(self->recorder, text_fail, place, error, NULL);
  Py_XDECREF(done);
  Py_XDECREF(place);
#if PY_VERSION_HEX >= 0x030C0000
  if (!recover()) PyErr_SetRaisedException(error);
  else Py_XDECREF(error);
#else
  if (!recover()) {
    PyErr_Restore(type, error, traceback);
  } else {
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
  }
#endif
}
