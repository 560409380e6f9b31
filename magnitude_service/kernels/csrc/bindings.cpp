// The extension module magnitude_service.kernels._kernels.
#include <nanobind/nanobind.h>

#include "bindings.h"

NB_MODULE(_kernels, module) {
  magnitude::bind_ops(module);
  magnitude::bind_selection(module);
  magnitude::bind_plan(module);
  magnitude::bind_executor(module);
}
