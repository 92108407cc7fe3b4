// EplListShare: one worker's share of lists that belong together, such as file names and their labels.
#include <string>
#include <vector>

#include "op_helpers.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplListShare")
    .Input("lists: T")
    .Output("shares: T")
    .Attr("T: list(type) >= 1")
    .Attr("index: int >= 0")
    .Attr("num_shares: int >= 1")
    .Attr("rule: {'even', 'unbalanced', 'drop'} = 'even'")
    .Attr("what: string")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      for (int i = 0; i < c->num_inputs(); ++i) {
        tf::shape_inference::ShapeHandle share = c->UnknownShape();
        if (c->RankKnown(c->input(i)) && c->Rank(c->input(i)) > 0) {
          TF_RETURN_IF_ERROR(c->ReplaceDim(c->input(i), 0, c->UnknownDim(), &share));
        }
        c->set_output(i, share);
      }
      return tf::Status();
    })
    .Doc(R"doc(
Gives out every num_shares-th row of some lists, from row number `index` on.

lists: tensors [n, ...] with the same n; a scalar is a list of one.
shares: tensors [m, ...] with the rows index, index + num_shares, index + 2 * num_shares, ...
rule: what becomes of the n % num_shares rows that are left over: even: there must be none; unbalanced: the first shares
  have one row more; drop: nobody gets them.
what: what error messages call the lists.
)doc");

class ListShareOp : public tf::OpKernel {
 public:
  explicit ListShareOp(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("index", &index_));
    OP_REQUIRES_OK(context, context->GetAttr("num_shares", &num_shares_));
    OP_REQUIRES_OK(context, context->GetAttr("rule", &rule_));
    OP_REQUIRES_OK(context, context->GetAttr("what", &what_));
    OP_REQUIRES(context, index_ < num_shares_,
                tf::errors::InvalidArgument("EplListShare '", name(), "': index ", index_, " of ", num_shares_,
                                            " shares; it must be below the number of shares."));
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::int64 rows = RowsOf(context->input(0));
    for (int i = 1; i < context->num_inputs(); ++i) {
      OP_REQUIRES(context, RowsOf(context->input(i)) == rows,
                  tf::errors::InvalidArgument("'", what_, "' has lists of ", rows, " and of ",
                                              RowsOf(context->input(i)), " entries; they must be of one length."));
    }
    const tf::int64 left_over = rows % num_shares_;
    OP_REQUIRES(context, rows >= num_shares_, TooFew(rows));
    OP_REQUIRES(context, rule_ != "even" || left_over == 0, Uneven(rows));
    const tf::int64 taken = rule_ == "unbalanced" ? rows : rows - left_over;
    for (int i = 0; i < context->num_inputs(); ++i) {
      OP_REQUIRES_OK(context, Share(context, i, taken));
    }
  }

 private:
  static tf::int64 RowsOf(const tf::Tensor& list) { return list.dims() == 0 ? 1 : list.dim_size(0); }

  tf::Status Share(tf::OpKernelContext* context, int i, tf::int64 taken) const {
    const tf::Tensor& list = context->input(i);
    tf::TensorShape shape = list.shape();
    const tf::int64 rows = (taken - index_ + num_shares_ - 1) / num_shares_;
    if (list.dims() == 0) {
      shape.AddDim(rows);
    } else {
      shape.set_dim(0, rows);
    }
    tf::Tensor* share = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(i, shape, &share));
    const tf::int64 width = rows == 0 ? 0 : shape.num_elements() / rows;
    switch (list.dtype()) {
#define EPL_COPY(type)                                             \
  case tf::DataTypeToEnum<type>::value:                            \
    CopyRows(list.flat<type>(), share->flat<type>(), rows, width); \
    return tf::Status();
      TF_CALL_POD_STRING_TYPES(EPL_COPY)
#undef EPL_COPY
      default:
        return tf::errors::InvalidArgument("'", what_, "' has a list of ", tf::DataTypeString(list.dtype()),
                                           ", which cannot be divided over workers.");
    }
  }

  template <typename From, typename To>
  void CopyRows(const From& from, To to, tf::int64 rows, tf::int64 width) const {
    for (tf::int64 row = 0; row < rows; ++row) {
      const tf::int64 start = (index_ + row * num_shares_) * width;
      for (tf::int64 k = 0; k < width; ++k) to(row * width + k) = from(start + k);
    }
  }

  tf::Status TooFew(tf::int64 rows) const {
    return tf::errors::InvalidArgument("io.slicing: '", what_, "' has ", rows, rows == 1 ? " file" : " files", " for ",
                                       num_shares_, " workers, so worker ", rows,
                                       rows + 1 < num_shares_ ? " and those after it" : "",
                                       " would have no data. Give it at least ", num_shares_,
                                       " files, start fewer workers, or use io.shard_dataset=True instead.");
  }

  tf::Status Uneven(tf::int64 rows) const {
    return tf::errors::InvalidArgument(
        "io.slicing: '", what_, "' has ", rows, " files, which do not divide evenly over ", num_shares_, " workers (",
        rows, " = ", num_shares_, " * ", rows / num_shares_, " + ", rows % num_shares_,
        "). Set io.unbalanced_io_slicing=True to let some workers read one file more, or io.drop_last_files=True to ",
        "leave out the last ", rows % num_shares_, ".");
  }

  int index_, num_shares_;
  std::string rule_, what_;
};

REGISTER_KERNEL_BUILDER(Name("EplListShare").Device(tf::DEVICE_CPU), ListShareOp);

}  // namespace
}  // namespace epl_ops
