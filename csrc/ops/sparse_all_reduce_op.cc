// EplSparseAllReduce: deep gradient compression (Lin et al., 2017) of a group of gradients of the same optimizer.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "op_helpers.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/errors.h"
#include "top_k.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplSparseAllReduce")
    .Input("gradients: num_inputs * float")
    .Input("velocities: N * float")
    .Input("residuals: N * float")
    .Input("slots: N * float")
    .Input("momenta: N * float")
    .Input("clip: float")
    .Input("steps: int64")
    .Output("reduced: N * float")
    .Output("new_velocities: N * float")
    .Output("new_residuals: N * float")
    .Output("applied_momenta: N * float")
    .Output("more_steps: int64")
    .Attr("N: int >= 1")
    .Attr("R: int >= 1 = 1")
    .Attr("num_inputs: int >= 1")
    .Attr("comm: int = 0")
    .Attr("tag: int = -1")
    .Attr("workers: int >= 2")
    .Attr("scale: float = 1.0")
    .Attr("sparsity: list(float) >= 1")
    .Attr("begin_step: int >= 0")
    .Attr("ramp_steps: int >= 1")
    .Attr("collective_name: string = ''")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      int n, inputs;
      TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
      TF_RETURN_IF_ERROR(c->GetAttr("num_inputs", &inputs));
      for (int i = 0; i < n; ++i) {
        for (int output = 0; output < 3; ++output) c->set_output(output * n + i, c->input(inputs + i));
        c->set_output(3 * n + i, c->Scalar());
      }
      c->set_output(4 * n, c->Scalar());
      return tf::Status();
    })
    .Doc(R"doc(
Sums N gradients over R local replicas and over all workers, of which each sends the largest parts only.

Before begin_step all of them travel, and nothing else changes. From then on, with g the local sum times `clip`:
u = momentum u + g, v = v + u; the largest of v are sent and become zero in v and in u, and the others wait in v.

gradients: N * R tensors: the N gradients of local replica 0, then those of replica 1, and so on.
velocities, residuals: u and v of this worker, with the shapes of the gradients.
slots: the momentum optimizer's own velocities, from which u starts at begin_step.
momenta: scalars.
clip: what the local sum is multiplied by.
steps: how many steps there were before; the same on all workers.
reduced: N tensors, the sums times `scale`.
new_velocities, new_residuals: u and v for the next step.
applied_momenta: what the optimizer is to take in the place of `momenta`: 0 where u has it already.
more_steps: steps + 1.
comm, tag, workers, scale, collective_name: as of EplAllReduce.
sparsity: the parts of each gradient that are not sent, each for an equal share of the ramp; then the last one.
begin_step, ramp_steps: the ramp.
)doc");

// Memory of outputs that variables keep until the next step: then that of the step before is free again, and the system
// need not find, and clear, as much anew.
class Spares {
 public:
  // Output `index` of a kernel, in memory that nobody else holds.
  tf::Status Output(tf::OpKernelContext* context, int index, const tf::TensorShape& shape, float** data) {
    tf::mutex_lock lock(mutex_);
    std::vector<tf::Tensor>& known = known_[index];
    known.erase(
        std::remove_if(known.begin(), known.end(), [&shape](const tf::Tensor& each) { return each.shape() != shape; }),
        known.end());
    auto spare = std::find_if(known.begin(), known.end(), [](tf::Tensor& each) {
      tf::TensorBuffer* buffer = tf::DMAHelper::buffer(&each);
      return buffer == nullptr || buffer->RefCountIsOne();
    });
    if (spare == known.end()) {
      tf::Tensor made;
      TF_RETURN_IF_ERROR(context->allocate_temp(tf::DT_FLOAT, shape, &made));
      if (known.size() == kMost) known.erase(known.begin());
      spare = known.insert(known.end(), made);
    }
    context->set_output(index, *spare);
    *data = reinterpret_cast<float*>(Bytes(*spare));
    return tf::Status();
  }

 private:
  static constexpr size_t kMost = 2;  // the variable's, and the next one

  tf::mutex mutex_;
  std::map<int, std::vector<tf::Tensor>> known_;
};

// What travels for one number: its place in the group of gradients, and itself.
struct Entry {
  uint32_t place;
  float value;
};

class SparseAllReduceOp : public tf::AsyncOpKernel {
 public:
  explicit SparseAllReduceOp(tf::OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("N", &num_tensors_));
    OP_REQUIRES_OK(context, context->GetAttr("R", &num_replicas_));
    OP_REQUIRES_OK(context, context->GetAttr("comm", &slot_));
    OP_REQUIRES_OK(context, context->GetAttr("tag", &tag_));
    OP_REQUIRES_OK(context, context->GetAttr("workers", &workers_));
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
    OP_REQUIRES_OK(context, context->GetAttr("sparsity", &sparsity_));
    OP_REQUIRES_OK(context, context->GetAttr("begin_step", &begin_step_));
    OP_REQUIRES_OK(context, context->GetAttr("ramp_steps", &ramp_steps_));
    OP_REQUIRES_OK(context, context->GetAttr("collective_name", &collective_name_));
    if (collective_name_.empty()) collective_name_ = name();
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    std::shared_ptr<Run> run = std::make_shared<Run>();
    run->slot = std::make_shared<PoolSlot>(slot_);
    OP_REQUIRES_ASYNC(context, run->slot->get() != nullptr, NoCommunicator(slot_, collective_name_), done);
    OP_REQUIRES_OK_ASYNC(context, Prepare(context, run.get()), done);
    if (run->steps < begin_step_) {
      StartDense(context, run, done);
    } else {
      OP_REQUIRES_OK_ASYNC(context, Compress(context, run.get()), done);
      StartSparse(context, run, done);
    }
  }

 private:
  // One execution.
  struct Run {
    std::shared_ptr<PoolSlot> slot;
    tf::int64 steps = 0;
    std::vector<tf::Tensor*> outputs;  // the sums
    std::vector<size_t> starts;        // of the gradients in the group, and where it ends
    std::vector<Entry> sent, received;
  };

  static float* Data(const tf::Tensor& tensor) { return reinterpret_cast<float*>(Bytes(tensor)); }
  const tf::Tensor& Gradient(tf::OpKernelContext* context, int i, int replica) const {
    return context->input(replica * num_tensors_ + i);
  }
  // The inputs behind the gradients: 0 velocities, 1 residuals, 2 slots, 3 momenta.
  const tf::Tensor& Input(tf::OpKernelContext* context, int kind, int i) const {
    return context->input((num_replicas_ + kind) * num_tensors_ + i);
  }

  tf::Status Prepare(tf::OpKernelContext* context, Run* run) const {
    run->steps = context->input((num_replicas_ + 4) * num_tensors_ + 1).scalar<tf::int64>()();
    tf::Tensor* more = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(4 * num_tensors_, tf::TensorShape({}), &more));
    more->scalar<tf::int64>()() = run->steps + 1;
    run->outputs.resize(num_tensors_);
    run->starts.assign(1, 0);
    for (int i = 0; i < num_tensors_; ++i) {
      const tf::TensorShape& shape = Input(context, 0, i).shape();
      for (int r = 0; r < num_replicas_; ++r) {
        if (Gradient(context, i, r).shape() != shape) {
          return tf::errors::InvalidArgument("'", collective_name_, "': gradient ", i, " has shape ",
                                             Gradient(context, i, r).shape().DebugString(), " in local replica ", r,
                                             ", but its variable has ", shape.DebugString(), ".");
        }
      }
      run->starts.push_back(run->starts.back() + shape.num_elements());
      // Memory of the gradient becomes that of the sum, which comes when the gradient is not needed any more.
      const std::vector<int> gradient(num_replicas_ == 1 && run->steps >= begin_step_ ? 1 : 0, i);
      TF_RETURN_IF_ERROR(context->forward_input_or_allocate_output(gradient, i, shape, &run->outputs[i]));
    }
    return tf::Status();
  }

  // The sum of a gradient over the local replicas.
  void AddUp(tf::OpKernelContext* context, int i, float* sum, size_t count) const {
    std::memcpy(sum, Data(Gradient(context, i, 0)), count * sizeof(float));
    for (int r = 1; r < num_replicas_; ++r) {
      const float* more = Data(Gradient(context, i, r));
      for (size_t k = 0; k < count; ++k) sum[k] += more[k];
    }
  }

  // How many of `count` numbers are sent in a step.
  size_t NumSent(size_t count, tf::int64 steps) const {
    const size_t size = sparsity_.size();
    const double passed = static_cast<double>(steps - begin_step_) / static_cast<double>(ramp_steps_);
    const size_t phase = passed >= 1.0 ? size - 1 : static_cast<size_t>(passed * static_cast<double>(size));
    const double kept = static_cast<double>(count) * (1.0 - static_cast<double>(sparsity_[phase]));
    return std::max<size_t>(1, static_cast<size_t>(std::floor(kept + 0.5)));
  }

  // New velocities and residuals, and what is sent of them.
  tf::Status Compress(tf::OpKernelContext* context, Run* run) {
    const float clip = context->input((num_replicas_ + 4) * num_tensors_).scalar<float>()();
    // All workers' velocities together, times `scale`, are to be what the optimizer has.
    const float first = 1.0f / (scale_ * static_cast<float>(workers_));
    const bool begins = run->steps == begin_step_;
    epl::TopK top_k;
    std::vector<uint32_t> places;
    for (int i = 0; i < num_tensors_; ++i) {
      const tf::TensorShape& shape = Input(context, 0, i).shape();
      float *u = nullptr, *v = nullptr;
      TF_RETURN_IF_ERROR(spares_.Output(context, num_tensors_ + i, shape, &u));
      TF_RETURN_IF_ERROR(spares_.Output(context, 2 * num_tensors_ + i, shape, &v));
      tf::Tensor* applied = nullptr;
      TF_RETURN_IF_ERROR(context->allocate_output(3 * num_tensors_ + i, tf::TensorShape({}), &applied));
      applied->scalar<float>()() = 0.0f;
      const size_t count = static_cast<size_t>(shape.num_elements());
      const float* sum = Data(Gradient(context, i, 0));
      if (num_replicas_ > 1) {
        AddUp(context, i, Data(*run->outputs[i]), count);  // a place for it until the real one comes
        sum = Data(*run->outputs[i]);
      }
      const float momentum = Input(context, 3, i).scalar<float>()();
      const float of_before = momentum * (begins ? first : 1.0f);
      const float* velocity = Data(Input(context, begins ? 2 : 0, i));
      const float* residual = Data(Input(context, 1, i));
      const auto number = [=](size_t k) { return residual[k] + (of_before * velocity[k] + clip * sum[k]); };
      const auto make = [=](size_t begin, size_t end) {
        for (size_t k = begin; k < end; ++k) {
          u[k] = of_before * velocity[k] + clip * sum[k];
          v[k] = residual[k] + u[k];
        }
      };
      top_k.Find(number, make, v, count, NumSent(count, run->steps), &places);
      for (uint32_t place : places) {
        run->sent.push_back({static_cast<uint32_t>(run->starts[i]) + place, v[place]});
        u[place] = v[place] = 0.0f;
      }
    }
    return tf::Status();
  }

  void StartDense(tf::OpKernelContext* context, const std::shared_ptr<Run>& run, const DoneCallback& done) const {
    Call* call = NewCall(context, run, EPL_ALL_REDUCE, EPL_FLOAT32, done);
    call->request.scale = scale_;
    for (int i = 0; i < num_tensors_; ++i) {
      const size_t count = run->starts[i + 1] - run->starts[i];
      context->set_output(num_tensors_ + i, Input(context, 0, i));
      context->set_output(2 * num_tensors_ + i, Input(context, 1, i));
      context->set_output(3 * num_tensors_ + i, Input(context, 3, i));
      float* sum = Data(*run->outputs[i]);
      if (num_replicas_ > 1) AddUp(context, i, sum, count);
      epl_segment segment;
      segment.in = num_replicas_ > 1 ? sum : Data(Gradient(context, i, 0));
      segment.out = sum;
      segment.count = count;
      call->segments.push_back(segment);
    }
    call->Start();
  }

  void StartSparse(tf::OpKernelContext* context, const std::shared_ptr<Run>& run, const DoneCallback& done) const {
    const DoneCallback finish = [this, context, run, done]() {
      if (!context->status().ok()) {
        done();
        return;
      }
      RunOnDevice(context, [this, context, run, done]() {
        Expand(context, run.get());
        done();
      });
    };
    Call* call = NewCall(context, run, EPL_ALL_GATHER_V, EPL_UINT8, finish);
    epl_segment segment;
    segment.in = run->sent.data();
    segment.out = nullptr;
    segment.count = run->sent.size() * sizeof(Entry);
    call->segments.push_back(segment);
    call->allocate = [run](const size_t* counts, int size, const uint8_t*, size_t) -> void* {
      size_t total = 0;
      for (int rank = 0; rank < size; ++rank) total += counts[rank];
      run->received.resize(total / sizeof(Entry) + 1);  // never without memory, which would mean failure
      run->received.pop_back();
      return run->received.data();
    };
    call->Start();
  }

  // Puts what all workers have sent where it belongs.
  void Expand(tf::OpKernelContext* context, Run* run) const {
    for (tf::Tensor* output : run->outputs) std::memset(Bytes(*output), 0, output->tensor_data().size());
    for (const Entry& entry : run->received) {
      if (entry.place >= run->starts.back()) {
        context->SetStatus(tf::errors::Internal("'", collective_name_, "': a worker has sent place ", entry.place,
                                                " of ", run->starts.back(), " numbers."));
        return;
      }
      const auto after = std::upper_bound(run->starts.begin(), run->starts.end(), entry.place);
      const size_t i = static_cast<size_t>(after - run->starts.begin()) - 1;
      Data(*run->outputs[i])[entry.place - run->starts[i]] += scale_ * entry.value;
    }
  }

  Call* NewCall(tf::OpKernelContext* context, const std::shared_ptr<Run>& run, epl_collective collective,
                epl_dtype dtype, const DoneCallback& done) const {
    Call* call = new Call(context, run->slot, collective_name_, [context, done](const tf::Status& status) {
      if (!status.ok()) context->SetStatus(status);
      done();
    });
    call->request.tag = tag_;
    call->request.collective = collective;
    call->request.dtype = dtype;
    call->request.reduce_op = EPL_SUM;
    return call;
  }

  int num_tensors_, num_replicas_, slot_, workers_;
  tf::int64 tag_, begin_step_, ramp_steps_;
  float scale_;
  std::vector<float> sparsity_;
  std::string collective_name_;
  Spares spares_;
};

REGISTER_KERNEL_BUILDER(Name("EplSparseAllReduce").Device(tf::DEVICE_CPU), SparseAllReduceOp);

}  // namespace
}  // namespace epl_ops
