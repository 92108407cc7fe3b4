// Elements of any type, read and written as numbers by other code than the library's own.
#ifndef EPL_TESTS_VALUES_H_
#define EPL_TESTS_VALUES_H_

#include <cstddef>
#include <vector>

#include "epl_comm.h"

namespace test {

// One element of any dtype.
void Store(epl_dtype dtype, void* array, size_t index, double value);
double Load(epl_dtype dtype, const void* array, size_t index);
size_t SizeOf(epl_dtype dtype);
double Tolerance(epl_dtype dtype);

// A buffer of elements of a type.
struct Elements {
  epl_dtype dtype;
  size_t count;
  std::vector<char> bytes;
  Elements(epl_dtype dtype_in, size_t count_in) : dtype(dtype_in), count(count_in), bytes(count * SizeOf(dtype) + 8) {}
  char* data() { return bytes.data(); }
  char* at(size_t i) { return bytes.data() + i * SizeOf(dtype); }
};

}  // namespace test
#endif  // EPL_TESTS_VALUES_H_
