// EplBroadcastReceive: the other workers' half of a broadcast.
#include <memory>
#include <string>

#include "broadcast_message.h"
#include "op_helpers.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/errors.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplBroadcastReceive")
    .Output("tensor: T")
    .Attr("T: {numbertype, bool, string}")
    .Attr("shape: shape = {unknown_rank: true}")
    .Attr("comm: int = 0")
    .Attr("tag: int = -1")
    .Attr("root: int = 0")
    .Attr("collective_name: string = ''")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::PartialTensorShape declared;
      TF_RETURN_IF_ERROR(c->GetAttr("shape", &declared));
      tf::shape_inference::ShapeHandle shape;
      TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(declared, &shape));
      c->set_output(0, shape);
      return tf::Status();
    })
    .Doc(R"doc(
Gives out the tensor that worker `root` sends with EplBroadcastSend.

tensor: the tensor, with the shape that it has at the root.
shape: what is known of the shape; the op fails when another one arrives.
comm: slot of the communicator in this process's pool.
tag: place in the order that the pool expects, the same on all workers; -1: the order of submission.
root: rank of the sender.
collective_name: what error messages call this, the same on all workers; default: "broadcast" and the tag.
)doc");

class BroadcastReceiveOp : public tf::AsyncOpKernel {
 public:
  explicit BroadcastReceiveOp(tf::OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("T", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("shape", &shape_));
    OP_REQUIRES_OK(context, context->GetAttr("comm", &slot_));
    OP_REQUIRES_OK(context, context->GetAttr("tag", &tag_));
    OP_REQUIRES_OK(context, context->GetAttr("root", &root_));
    OP_REQUIRES_OK(context, context->GetAttr("collective_name", &collective_name_));
    if (collective_name_.empty()) collective_name_ = "broadcast " + std::to_string(tag_);
  }

  // Only hands a request over. TensorFlow runs such kernels at once, and others when a thread is free: with one core a
  // message would wait for the computation that it is meant to run beside.
  bool IsExpensive() override { return false; }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    std::shared_ptr<PoolSlot> slot = std::make_shared<PoolSlot>(slot_);
    OP_REQUIRES_ASYNC(context, slot->get() != nullptr, NoCommunicator(slot_, collective_name_), done);
    std::shared_ptr<std::string> strings = std::make_shared<std::string>();
    Call* call = new Call(context, slot, collective_name_, [this, context, strings, done](const tf::Status& status) {
      Finish(context, status, strings, done);
    });
    call->request.tag = tag_;
    call->request.collective = EPL_BROADCAST;
    call->request.dtype = EPL_UINT8;
    call->request.peer = root_;
    call->allocate = [this, context, call, strings](const size_t* counts, int size, const uint8_t* extra,
                                                    size_t extra_length) -> void* {
      size_t bytes = 0;
      for (int rank = 0; rank < size; ++rank) bytes += counts[rank];
      void* output = nullptr;
      call->failure = Allocate(context, std::string(reinterpret_cast<const char*>(extra), extra_length), bytes,
                               strings.get(), &output);
      return call->failure.ok() ? output : nullptr;
    };
    call->Start();
  }

 private:
  tf::Status Allocate(tf::OpKernelContext* context, const std::string& header, size_t bytes, std::string* strings,
                      void** output) const {
    // Not NULL when there is nothing to write: NULL would mean failure.
    static char nothing;
    tf::DataType dtype;
    tf::TensorShape shape;
    TF_RETURN_IF_ERROR(DecodeShape(header, &dtype, &shape));
    if (dtype != dtype_ || !shape_.IsCompatibleWith(shape)) {
      return tf::errors::FailedPrecondition("'", collective_name_, "': this worker expects ",
                                            tf::DataTypeString(dtype_), shape_.DebugString(), ", but worker ", root_,
                                            " sends ", tf::DataTypeString(dtype), shape.DebugString(),
                                            ". All workers must build the same graph.");
    }
    tf::Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &tensor));
    if (dtype == tf::DT_STRING) {
      strings->resize(bytes);
      *output = bytes == 0 ? &nothing : &(*strings)[0];
      return tf::Status();
    }
    if (tensor->tensor_data().size() != bytes) {
      return tf::errors::Internal("'", collective_name_, "': ", bytes, " bytes for a tensor of ",
                                  tensor->tensor_data().size(), " bytes");
    }
    *output = bytes == 0 ? &nothing : Bytes(*tensor);
    return tf::Status();
  }

  void Finish(tf::OpKernelContext* context, tf::Status status, const std::shared_ptr<std::string>& strings,
              const DoneCallback& done) const {
    if (status.ok() && dtype_ == tf::DT_STRING) {
      RunOnDevice(context, [context, strings, done]() {
        const tf::Status decoded = DecodeStrings(*strings, context->mutable_output(0));
        if (!decoded.ok()) context->SetStatus(decoded);
        done();
      });
      return;
    }
    if (!status.ok()) context->SetStatus(status);
    done();
  }

  tf::DataType dtype_;
  tf::PartialTensorShape shape_;
  int slot_, root_;
  tf::int64 tag_;
  std::string collective_name_;
};

REGISTER_KERNEL_BUILDER(Name("EplBroadcastReceive").Device(tf::DEVICE_CPU), BroadcastReceiveOp);

}  // namespace
}  // namespace epl_ops
