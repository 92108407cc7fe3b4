// EplRows, EplPackStrings, EplUnpackStrings: give any tensor a form in which EplAllGather can take it.
#include <cstring>
#include <string>

#include "op_helpers.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplRows")
    .Input("tensor: T")
    .Output("rows: T")
    .Attr("T: type")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      const bool scalar = c->RankKnown(c->input(0)) && c->Rank(c->input(0)) == 0;
      c->set_output(0, scalar ? c->Vector(1) : c->input(0));
      if (!c->RankKnown(c->input(0))) c->set_output(0, c->UnknownShape());
      return tf::Status();
    })
    .Doc("A scalar becomes a vector of one element; everything else stays as it is.");

REGISTER_OP("EplPackStrings")
    .Input("strings: string")
    .Output("bytes: uint8")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return tf::Status();
    })
    .Doc(R"doc(
Packs strings into bytes. Packs that follow one another can be unpacked together.

strings: any shape; a scalar is a vector of one.
bytes: the number of dimensions, the dimensions, the strings' lengths (8 bytes each, in the order of this machine), and
  then the strings.
)doc");

REGISTER_OP("EplUnpackStrings")
    .Input("bytes: uint8")
    .Output("strings: string")
    .Attr("what: string")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->UnknownShape());
      return tf::Status();
    })
    .Doc(R"doc(
Unpacks what EplPackStrings has packed, and concatenates it on dimension 0.

bytes: packs, one after the other; all dimensions but the first must be equal.
what: what error messages call it.
)doc");

class RowsOp : public tf::OpKernel {
 public:
  explicit RowsOp(tf::OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& tensor = context->input(0);
    if (tensor.dims() > 0) {
      context->set_output(0, tensor);
      return;
    }
    tf::Tensor rows(tensor.dtype());
    OP_REQUIRES(context, rows.CopyFrom(tensor, tf::TensorShape({1})),
                tf::errors::Internal("EplRows '", name(), "': a scalar does not fit a vector of one element."));
    context->set_output(0, rows);
  }
};

class PackStringsOp : public tf::OpKernel {
 public:
  explicit PackStringsOp(tf::OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& strings = context->input(0);
    const auto flat = strings.flat<tf::tstring>();
    const int dims = strings.dims() == 0 ? 1 : strings.dims();
    tf::int64 size = (1 + dims + flat.size()) * static_cast<tf::int64>(sizeof(tf::int64));
    for (tf::int64 i = 0; i < flat.size(); ++i) size += flat(i).size();
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({size}), &output));
    char* to = Bytes(*output);
    Put(&to, dims);
    for (int d = 0; d < dims; ++d) Put(&to, strings.dims() == 0 ? 1 : strings.dim_size(d));
    for (tf::int64 i = 0; i < flat.size(); ++i) Put(&to, flat(i).size());
    for (tf::int64 i = 0; i < flat.size(); ++i) {
      if (flat(i).size() > 0) std::memcpy(to, flat(i).data(), flat(i).size());
      to += flat(i).size();
    }
  }

 private:
  static void Put(char** to, tf::int64 number) {
    std::memcpy(*to, &number, sizeof(number));
    *to += sizeof(number);
  }
};

class UnpackStringsOp : public tf::OpKernel {
 public:
  explicit UnpackStringsOp(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("what", &what_));
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& bytes = context->input(0);
    tf::TensorShape shape;
    // Twice over the packs: once for the shape of the whole, once for the strings.
    OP_REQUIRES_OK(context, Read(bytes, &shape, nullptr));
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
    OP_REQUIRES_OK(context, Read(bytes, &shape, output));
  }

 private:
  tf::Status Read(const tf::Tensor& bytes, tf::TensorShape* whole, tf::Tensor* output) const {
    const char* at = Bytes(bytes);
    const char* const end = at + bytes.NumElements();
    tf::int64 done = 0, rows = 0;
    tf::TensorShape first;
    for (bool is_first = true; at < end || is_first; is_first = false) {
      tf::TensorShape shape;
      tf::int64 dims = 0, dim = 0;
      if (!Take(&at, end, &dims) || dims < 1) return Broken();
      for (tf::int64 d = 0; d < dims; ++d) {
        if (!Take(&at, end, &dim) || dim < 0) return Broken();
        shape.AddDim(dim);
      }
      rows += shape.dim_size(0);
      const tf::int64 count = shape.num_elements();
      shape.set_dim(0, 0);
      if (is_first) first = shape;
      if (shape != first) {
        return tf::errors::InvalidArgument("'", what_, "': strings of shape ", first.DebugString(), " and of ",
                                           shape.DebugString(), " cannot be concatenated on dimension 0.");
      }
      if (end - at < count * static_cast<tf::int64>(sizeof(tf::int64))) return Broken();
      const char* text = at + count * sizeof(tf::int64);
      for (tf::int64 i = 0; i < count; ++i) {
        tf::int64 length = 0;
        if (!Take(&at, end, &length) || length < 0 || end - text < length) return Broken();
        if (output != nullptr) output->flat<tf::tstring>()(done + i) = tf::tstring(text, length);
        text += length;
      }
      done += count;
      at = text;
    }
    *whole = first;
    whole->set_dim(0, rows);
    return tf::Status();
  }

  static bool Take(const char** at, const char* end, tf::int64* number) {
    if (end - *at < static_cast<tf::int64>(sizeof(*number))) return false;
    std::memcpy(number, *at, sizeof(*number));
    *at += sizeof(*number);
    return true;
  }

  tf::Status Broken() const {
    return tf::errors::DataLoss("'", what_, "': the bytes are not what EplPackStrings has made.");
  }

  std::string what_;
};

REGISTER_KERNEL_BUILDER(Name("EplRows").Device(tf::DEVICE_CPU), RowsOp);
REGISTER_KERNEL_BUILDER(Name("EplPackStrings").Device(tf::DEVICE_CPU), PackStringsOp);
REGISTER_KERNEL_BUILDER(Name("EplUnpackStrings").Device(tf::DEVICE_CPU), UnpackStringsOp);

}  // namespace
}  // namespace epl_ops
