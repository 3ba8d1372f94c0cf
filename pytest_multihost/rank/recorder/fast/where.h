#pragma once
#include "core.h"

/* The user's line: as Recorder._where. */

static struct place *place_of(Core *self, PyCodeObject *code, int lasti) {
  size_t at = mix((size_t)code >> 4, (size_t)lasti);
  for (;; at++) {
    struct place *place = &self->places[at % PLACES];
    if (!place->code || (place->code == code && place->lasti == lasti)) return place;
  }
}

static void remember_place(Core *self, PyCodeObject *code, int lasti, const struct where *where) {
  if (self->known >= PLACES / 2) return;
  struct place *place = place_of(self, code, lasti);
  if (!place->code) {
    self->known++;
    Py_INCREF(code);
    place->code = code; /* alive, so that no other gets its address */
    place->lasti = lasti;
  }
  if (where) place->where = *where;
}

/* Ask Recorder._find. 1: this is the user's; 0: it is not; -1 with an exception. */
static SELDOM int ask_place(Core *self, PyFrameObject *frame, PyCodeObject *code, struct where *where) {
  PyObject *found = PyObject_CallMethodOneArg(self->recorder, text_find, (PyObject *)frame);
  if (!found) return -1;
  int is_users = found != Py_None;
  if (is_users && !PyArg_ParseTuple(found, "III", &where->file, &where->line, &where->function))
    is_users = -1;
  Py_DECREF(found);
  if (is_users >= 0)
    remember_place(self, code, is_users ? PyFrame_GetLasti(frame) : LIBRARY, is_users ? where : NULL);
  return is_users;
}

static int look_at(Core *self, PyFrameObject *frame, struct where *where) {
  PyCodeObject *code = PyFrame_GetCode(frame);
  int is_users = 0;
  if (!place_of(self, code, LIBRARY)->code) {
    struct place *known = place_of(self, code, PyFrame_GetLasti(frame));
    is_users = known->code ? 1 : ask_place(self, frame, code, where);
    if (known->code && is_users == 1) *where = known->where;
  }
  Py_DECREF(code);
  return is_users;
}

/* Make objects of the frames, and ask for what is not known. 1: Python may have run; -1: with an
 * exception. */
static SELDOM int walk(Core *self, PyThreadState *thread, struct where *where) {
  memset(where, 0, sizeof *where);
  PyFrameObject *frame = PyThreadState_GetFrame(thread);
  int is_users = 0;
  while (frame && !(is_users = look_at(self, frame, where))) {
    PyFrameObject *outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  Py_XDECREF(frame);
  return is_users < 0 ? -1 : 1;
}

#ifdef HAS_BARE_FRAMES
#if PY_VERSION_HEX >= 0x030D0000
#define CURRENT(state) (state)->current_frame
#define CODE(frame) (PyCode_Check((frame)->f_executable) ? (PyCodeObject *)(frame)->f_executable : NULL)
#else
#define CURRENT(state) (state)->cframe->current_frame
#define CODE(frame) (frame)->f_code
#endif

/* What is internal may differ between two releases that load the same extensions. */
static int is_same_python(void) { return Py_Version >> 8 == PY_VERSION_HEX >> 8; }

static int lasti_of(_PyInterpreterFrame *frame) {
  return _PyInterpreterFrame_LASTI(frame) * (int)sizeof(_Py_CODEUNIT);
}

/* Whether this thread is where it was the last time. */
static int is_same_way(Core *self, const struct way *way, _PyInterpreterFrame *frame) {
  if (!way->steps || way->age != self->age) return 0;
  for (int step = 0; step < way->steps; step++, frame = frame->previous)
    if (!frame || CODE(frame) != way->code[step] || lasti_of(frame) != way->lasti[step]) return 0;
  return 1;
}

/* Find the user's line where all code on the way to it is known. */
static int find_known(Core *self, _PyInterpreterFrame *frame, struct way *way) {
  way->steps = 0;
  int steps = 0;
  for (; frame; frame = frame->previous) {
    PyCodeObject *code = CODE(frame);
    if (!code) return 0;
    if (steps < STEPS) {
      way->code[steps] = code;
      way->lasti[steps] = lasti_of(frame);
    }
    steps++;
    if (_PyFrame_IsIncomplete(frame)) { /* is being entered, or no Python */
      steps = STEPS + 1;
      continue;
    }
    if (place_of(self, code, LIBRARY)->code) continue;
    struct place *known = place_of(self, code, lasti_of(frame));
    if (!known->code) return 0;
    way->where = known->where;
    way->steps = steps <= STEPS ? steps : 0;
    way->age = self->age;
    return 1;
  }
  return 0;
}
#endif

/* Find the innermost line of the user's; zeros if there is none. -1 with an exception. */
static int find_where(Core *self, PyThreadState *thread, struct way *way, struct where *where) {
#ifdef HAS_BARE_FRAMES
  if (is_same_python()) {
    _PyInterpreterFrame *bare = CURRENT(thread);
    if (is_same_way(self, way, bare) || find_known(self, bare, way)) {
      *where = way->where;
      return 0;
    }
  }
#else
  (void)way;
#endif
  return walk(self, thread, where);
}
