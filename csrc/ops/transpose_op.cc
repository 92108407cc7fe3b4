// EplTranspose: Transpose by tiles. TensorFlow 1.15's CPU kernel walks one of the two tensors element by element, each
// in another line of memory: up to ten times as long.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "op_helpers.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/errors.h"
#include "tensorflow/core/util/work_sharder.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplTranspose")
    .Input("x: T")
    .Output("y: T")
    .Attr("T: type")
    .Attr("perm: list(int)")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      std::vector<tf::int32> perm;
      TF_RETURN_IF_ERROR(c->GetAttr("perm", &perm));
      tf::shape_inference::ShapeHandle x;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), perm.size(), &x));
      std::vector<tf::shape_inference::DimensionHandle> dims;
      for (tf::int32 dim : perm) {
        if (dim < 0 || dim >= c->Rank(x)) return tf::errors::InvalidArgument("EplTranspose: no dimension ", dim);
        dims.push_back(c->Dim(x, dim));
      }
      c->set_output(0, c->MakeShape(dims));
      return tf::Status();
    })
    .Doc(R"doc(
Transposes a tensor of numbers on the host.

perm: which dimension of x each dimension of y is.
)doc");

// A dimension of y: how many, and how many elements apart they lie in x and in y.
struct Dim {
  tf::int64 size, from, to;
};

// What is left of a transposition when dimensions of one element are left out and those that stay together are one.
std::vector<Dim> Merged(const tf::TensorShape& shape, const std::vector<tf::int32>& perm) {
  std::vector<tf::int64> strides(shape.dims(), 1);
  for (int d = shape.dims() - 2; d >= 0; --d) strides[d] = strides[d + 1] * shape.dim_size(d + 1);
  std::vector<Dim> dims;
  for (tf::int32 d : perm) {
    const tf::int64 size = shape.dim_size(d);
    if (size == 1) continue;
    if (!dims.empty() && dims.back().from == strides[d] * size) {
      dims.back().size *= size;
      dims.back().from = strides[d];
    } else {
      dims.push_back({size, strides[d], 0});
    }
  }
  tf::int64 to = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    dims[d].to = to;
    to *= dims[d].size;
  }
  return dims;
}

// Where the index-th of the elements that `dims` count lies: {from, to}.
std::pair<tf::int64, tf::int64> Place(const std::vector<Dim>& dims, tf::int64 index) {
  std::pair<tf::int64, tf::int64> place{0, 0};
  for (size_t d = dims.size(); d-- > 0;) {
    const tf::int64 at = index % dims[d].size;
    index /= dims[d].size;
    place.first += at * dims[d].from;
    place.second += at * dims[d].to;
  }
  return place;
}

constexpr tf::int64 kTile = 16;  // of 4 bytes: a line of memory

// Elements of a row of y, which lie `from_stride` apart in x.
template <typename T>
void CopyRow(const T* from, tf::int64 from_stride, T* to, tf::int64 begin, tf::int64 end) {
  for (tf::int64 column = begin; column < end; ++column) to[column] = from[column * from_stride];
}

// A tile: `rows` of y that lie next to each other in x, `columns` of y that lie `from_stride` apart there.
template <typename T>
void CopyTile(const T* from, tf::int64 from_stride, T* to, tf::int64 to_stride, tf::int64 rows, tf::int64 columns) {
  for (tf::int64 row = 0; row < rows; ++row) CopyRow(from + row, from_stride, to + row * to_stride, 0, columns);
}

#ifdef __SSE__
// The same of whole tiles: four by four in registers, which halves the time.
template <>
void CopyTile(const float* from, tf::int64 from_stride, float* to, tf::int64 to_stride, tf::int64 rows,
              tf::int64 columns) {
  for (tf::int64 row = 0; row + 4 <= rows; row += 4) {
    for (tf::int64 column = 0; column + 4 <= columns; column += 4) {
      const float* at = from + column * from_stride + row;
      __m128 a = _mm_loadu_ps(at), b = _mm_loadu_ps(at + from_stride), c = _mm_loadu_ps(at + 2 * from_stride);
      __m128 d = _mm_loadu_ps(at + 3 * from_stride);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      float* there = to + row * to_stride + column;
      _mm_storeu_ps(there, a);
      _mm_storeu_ps(there + to_stride, b);
      _mm_storeu_ps(there + 2 * to_stride, c);
      _mm_storeu_ps(there + 3 * to_stride, d);
    }
  }
  const tf::int64 rest_row = rows / 4 * 4, rest_column = columns / 4 * 4;
  for (tf::int64 row = 0; row < rows; ++row) {
    CopyRow(from + row, from_stride, to + row * to_stride, row < rest_row ? rest_column : 0, columns);
  }
}
#endif

class TransposeOp : public tf::OpKernel {
 public:
  explicit TransposeOp(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("perm", &perm_));
    std::vector<bool> seen(perm_.size());
    for (tf::int32 dim : perm_) {
      OP_REQUIRES(context, dim >= 0 && dim < static_cast<int>(perm_.size()) && !seen[dim],
                  tf::errors::InvalidArgument("EplTranspose '", name(), "': perm has to name each dimension once."));
      seen[dim] = true;
    }
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& x = context->input(0);
    OP_REQUIRES(context, x.dims() == static_cast<int>(perm_.size()),
                tf::errors::InvalidArgument("EplTranspose '", name(), "': x has ", x.dims(), " dimensions, perm ",
                                            perm_.size(), "."));
    OP_REQUIRES(context, tf::DataTypeCanUseMemcpy(x.dtype()),
                tf::errors::InvalidArgument("EplTranspose '", name(), "': x has to be of numbers."));
    tf::TensorShape shape;
    for (tf::int32 dim : perm_) shape.AddDim(x.dim_size(dim));
    const std::vector<Dim> dims = Merged(x.shape(), perm_);
    if (dims.size() < 2) {
      tf::Tensor y(x.dtype());
      OP_REQUIRES(context, y.CopyFrom(x, shape), tf::errors::Internal("EplTranspose '", name(), "': sizes differ."));
      context->set_output(0, y);
      return;
    }
    tf::Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &y));
    if (x.NumElements() == 0) return;
    switch (tf::DataTypeSize(x.dtype())) {
      case 1:
        return Transpose<uint8_t>(context, x, dims, y);
      case 2:
        return Transpose<uint16_t>(context, x, dims, y);
      case 4:
        return Transpose<float>(context, x, dims, y);
      case 8:
        return Transpose<uint64_t>(context, x, dims, y);
      default:
        context->CtxFailure(tf::errors::Unimplemented("EplTranspose '", name(), "': elements of ",
                                                      tf::DataTypeSize(x.dtype()), " bytes."));
    }
  }

 private:
  template <typename T>
  static void Transpose(tf::OpKernelContext* context, const tf::Tensor& x, std::vector<Dim> dims, tf::Tensor* y) {
    const T* from = reinterpret_cast<const T*>(Bytes(x));
    T* to = reinterpret_cast<T*>(Bytes(*y));
    const Dim columns = dims.back();
    dims.pop_back();
    if (columns.from == 1) {
      const size_t bytes = columns.size * sizeof(T);
      Share(context, x.NumElements() / columns.size, bytes, [=](tf::int64 begin, tf::int64 end) {
        for (tf::int64 index = begin; index < end; ++index) {
          const auto place = Place(dims, index);
          std::memcpy(to + place.second, from + place.first, bytes);
        }
      });
      return;
    }
    const auto next = std::find_if(dims.begin(), dims.end(), [](const Dim& dim) { return dim.from == 1; });
    const Dim rows = *next;
    dims.erase(next);
    // Tiles in the order of y, whose lines are then written one after the other.
    const tf::int64 across = (rows.size + kTile - 1) / kTile, down = (columns.size + kTile - 1) / kTile;
    const tf::int64 tiles = x.NumElements() / rows.size / columns.size * across * down;
    Share(context, tiles, kTile * kTile * sizeof(T), [=](tf::int64 begin, tf::int64 end) {
      for (tf::int64 index = begin; index < end; ++index) {
        const auto place = Place(dims, index / (across * down));
        const tf::int64 row = index / down % across * kTile, column = index % down * kTile;
        CopyTile(from + place.first + row + column * columns.from, columns.from,
                 to + place.second + row * rows.to + column, rows.to, std::min(kTile, rows.size - row),
                 std::min(kTile, columns.size - column));
      }
    });
  }

  // Does `count` pieces of so many bytes each with the threads of the device.
  static void Share(tf::OpKernelContext* context, tf::int64 count, tf::int64 bytes,
                    const std::function<void(tf::int64, tf::int64)>& work) {
    const auto* threads = context->device()->tensorflow_cpu_worker_threads();
    tf::Shard(threads->num_threads, threads->workers, count, 2 * bytes, work);
  }

  std::vector<tf::int32> perm_;
};

REGISTER_KERNEL_BUILDER(Name("EplTranspose").Device(tf::DEVICE_CPU), TransposeOp);

}  // namespace
}  // namespace epl_ops
