// Sizes and names of the enumerations of epl_comm.h.
#ifndef EPL_COMM_DTYPE_H_
#define EPL_COMM_DTYPE_H_

#include <cstddef>

#include "epl_comm.h"

namespace epl {

constexpr int kNumDtypes = 8;
constexpr int kNumReduceOps = 5;
constexpr int kNumCollectives = 11;

// Bytes of one element; 0 for a value that is no dtype.
inline size_t SizeOf(int dtype) {
  static constexpr size_t kSizes[kNumDtypes] = {2, 2, 4, 8, 4, 8, 1, 1};
  return dtype >= 0 && dtype < kNumDtypes ? kSizes[dtype] : 0;
}

inline bool IsFloating(int dtype) { return dtype >= EPL_FLOAT16 && dtype <= EPL_FLOAT64; }

inline const char* DtypeName(int dtype) {
  static constexpr const char* kNames[kNumDtypes] = {"float16", "bfloat16", "float32", "float64",
                                                     "int32",   "int64",    "uint8",   "bool"};
  return dtype >= 0 && dtype < kNumDtypes ? kNames[dtype] : "unknown dtype";
}

inline const char* ReduceOpName(int op) {
  static constexpr const char* kNames[kNumReduceOps] = {"sum", "mean", "min", "max", "prod"};
  return op >= 0 && op < kNumReduceOps ? kNames[op] : "unknown reduce op";
}

inline const char* CollectiveName(int collective) {
  static constexpr const char* kNames[kNumCollectives] = {
      "all_reduce", "reduce",       "broadcast", "all_gather", "all_gather_v", "reduce_scatter",
      "all_to_all", "all_to_all_v", "send",      "recv",       "barrier"};
  return collective >= 0 && collective < kNumCollectives ? kNames[collective] : "unknown collective";
}

inline bool IsReduction(int collective) {
  return collective == EPL_ALL_REDUCE || collective == EPL_REDUCE || collective == EPL_REDUCE_SCATTER;
}

}  // namespace epl
#endif  // EPL_COMM_DTYPE_H_
