// Elements of any type, read and written as numbers by other code than the library's own.
#ifndef EPL_TESTS_VALUES_H_
#define EPL_TESTS_VALUES_H_

#include <cstddef>

#include "epl_comm.h"

namespace test {

// One element of any dtype.
void Store(epl_dtype dtype, void* array, size_t index, double value);
double Load(epl_dtype dtype, const void* array, size_t index);
size_t SizeOf(epl_dtype dtype);
double Tolerance(epl_dtype dtype);

}  // namespace test
#endif  // EPL_TESTS_VALUES_H_
