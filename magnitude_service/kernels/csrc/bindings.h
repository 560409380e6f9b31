// The parts of the extension module: each function adds one file's names.
#pragma once

#include <nanobind/nanobind.h>

namespace magnitude {

void bind_ops(nanobind::module_& module);         // single kernels, for tests and benchmarks
void bind_selection(nanobind::module_& module);  // which table computes
void bind_plan(nanobind::module_& module);        // a step's arrays, and the sampler alone for tests
void bind_executor(nanobind::module_& module);    // the native executor

}  // namespace magnitude
