// Puts EplLamb or EplLars in the place of the operations of TensorFlow that update a variable by LAMB or LARS, where
// these are on a CPU of this process. It sees the graph of a session after its operations have got devices, so what
// programs build, save and export has operations of TensorFlow alone.
//
//   grad, w, m, v -> 30 operations -> Assign w, m, v     becomes     grad -> EplLamb(w, m, v)
//
// epl.optimizers.fused_updates has tagged the operations with what they take of each other. An update stays as it is
// where it no longer is what was built: where something stands between, or somebody else takes a part. So does one
// whose sums are reduced over devices, or whose variable lies on another device than what belongs to it.
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/graph/node_builder.h"
#include "tensorflow/core/public/session_options.h"

namespace epl_ops {
namespace {

namespace tf = tensorflow;

using Source = std::pair<tf::Node*, int>;  // a tensor: who makes it, and which of its outputs it is

const char kTag[] = "_epl_layer_wise";
const char kLocal[] = "/job:localhost/replica:0/task:0/device:CPU:";

std::vector<std::string> Split(const std::string& text, char by) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(by, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// The tag of a node: "kind|id|type of the operation|inputs".
struct Tag {
  std::string kind, id, op;
  std::vector<std::string> inputs;  // see Update::Walk

  static bool Of(const tf::Node* node, Tag* tag) {
    const tf::AttrValue* value = node->attrs().Find(kTag);
    if (value == nullptr) return false;
    const std::vector<std::string> parts = Split(value->s(), '|');
    if (parts.size() != 4) return false;
    *tag = Tag{parts[0], parts[1], parts[2], {}};
    if (!parts[3].empty()) tag->inputs = Split(parts[3], ',');
    return true;
  }
};

// What the kinds of updates are made of.
struct Kind {
  bool excluded;
  std::map<std::string, std::string> writes;  // further writes, each with the node that it takes its value from
  std::map<std::string, std::vector<std::string>> sums;  // sum to the path that leads to it
  std::string op;
  std::vector<std::string> inputs;  // by their names
};

const std::map<std::string, Kind>& Kinds() {
  using Names = std::vector<std::string>;
  static const auto* kinds = [] {
    const Names lamb = {"var", "m", "v", "grad", "beta1", "beta2", "power1", "power2", "epsilon", "decay", "rate"};
    const Names lars = {"var", "velocity", "grad", "rate", "momentum", "coeff", "decay", "epsilon"};
    const std::map<std::string, std::string> lamb_writes = {{"write_m", "new_m"}, {"write_v", "new_v"}};
    const std::map<std::string, std::string> lars_writes = {{"write_velocity", "new_velocity"}};
    const std::map<std::string, Names> lamb_sums = {{"var_sum", {"value", "var_square"}},
                                                    {"step_sum", {"step", "step_square"}}};
    const std::map<std::string, Names> lars_sums = {{"var_sum", {"value", "var_square"}},
                                                    {"grad_sum", {"own_grad", "grad_square"}}};
    auto* made = new std::map<std::string, Kind>;
    (*made)["lamb"] = Kind{false, lamb_writes, lamb_sums, "Lamb", lamb};
    (*made)["lamb_excluded"] = Kind{true, lamb_writes, {}, "Lamb", lamb};
    (*made)["lars"] = Kind{false, lars_writes, lars_sums, "Lars", lars};
    (*made)["lars_excluded"] = Kind{true, lars_writes, {}, "Lars", lars};
    return made;
  }();
  return *kinds;
}

// The update that ends in a write of its variable.
class Update {
 public:
  Update(tf::Graph* graph, tf::Node* write, const Tag& tag) : graph_(graph), write_(write), tag_(tag) {}

  // Whether the update is still what was built. Changes nothing.
  bool Find() {
    const auto kind = Kinds().find(tag_.kind);
    if (kind == Kinds().end()) return false;
    kind_ = &kind->second;
    device_ = write_->assigned_device_name();
    if (device_.compare(0, sizeof(kLocal) - 1, kLocal) != 0) return false;
    if (!Walk(write_)) return false;
    for (const auto& sum : kind_->sums) {
      tf::Node* node = nullptr;
      for (const std::string& step : sum.second) {
        node = node == nullptr ? nodes_[step] : Consumer(node, step);
        if (node == nullptr) return false;
      }
      node = Consumer(node, sum.first);
      if (node == nullptr || !Walk(node)) return false;
    }
    for (const auto& write : kind_->writes) {
      tf::Node* from = nodes_[write.second];
      tf::Node* node = from == nullptr ? nullptr : Consumer(from, write.first);
      if (node == nullptr || !Walk(node)) return false;
    }
    for (const auto& read : reads_) {
      if (given_.count(read.first) == 0 || given_[read.first] != read.second) return false;
    }
    for (const auto& sum : sums_) {
      const auto own = nodes_.find(sum.first);
      if (own == nodes_.end() || sum.second != Source(own->second, 0)) return false;
    }
    for (const auto& each : given_) {
      if (!IsHere(each.second)) return false;
    }
    for (const auto& each : nodes_) inside_.insert(each.second);
    for (const auto& each : nodes_) {
      if (!IsOurs(each.first, each.second)) return false;
    }
    return !IsCircular();
  }

  tf::Status Fuse() {
    const bool is_resource = write_->type_string() == "AssignVariableOp";
    const std::string prefix = is_resource ? "EplResource" : "Epl";
    tf::DataType dtype;
    bool use_locking = false;
    TF_RETURN_IF_ERROR(tf::GetNodeAttr(write_->attrs(), is_resource ? "dtype" : "T", &dtype));
    if (!is_resource) TF_RETURN_IF_ERROR(tf::GetNodeAttr(write_->attrs(), "use_locking", &use_locking));
    // Numbers that an excluded variable does not use.
    if (given_.count("decay") == 0) given_["decay"] = given_["rate"];
    for (const char* name : {"coeff", "epsilon"}) {
      if (given_.count(name) == 0) given_[name] = given_["rate"];
    }
    // Who waits for the writes. They go, and what takes their place has their names.
    std::vector<tf::Node*> after;
    std::map<std::string, std::string> names;
    for (const auto& each : nodes_) {
      if (!IsWrite(each.first)) continue;
      for (const tf::Edge* edge : each.second->out_edges()) {
        if (edge->IsControlEdge() && !edge->dst()->IsSink()) after.push_back(edge->dst());
      }
      names[each.first] = each.second->name();
    }
    const std::string requested = write_->requested_device();
    for (const auto& each : names) graph_->RemoveNode(nodes_[each.first]);

    tf::NodeBuilder builder(names["write_var"], prefix + kind_->op);
    for (const std::string& input : kind_->inputs) builder.Input(given_[input].first, given_[input].second);
    builder.Attr("T", dtype).Attr("excluded", kind_->excluded).Attr("use_locking", use_locking).Device(requested);
    for (tf::Node* control : controls_) builder.ControlInput(control);
    tf::Node* update = nullptr;
    TF_RETURN_IF_ERROR(builder.Finalize(graph_, &update));
    update->set_assigned_device_name(device_);
    for (const auto& each : names) {
      if (each.first == "write_var") continue;
      tf::Node* done = nullptr;
      tf::NodeBuilder other(each.second, "NoOp");
      TF_RETURN_IF_ERROR(other.Device(requested).ControlInput(update).Finalize(graph_, &done));
      done->set_assigned_device_name(device_);
    }
    for (tf::Node* each : after) graph_->AddControlEdge(update, each);
    return tf::Status();
  }

 private:
  static bool IsWrite(const std::string& id) { return id.compare(0, 6, "write_") == 0; }

  // Follows a node's inputs as far as they are of this update. An input is, by the first character of what the tag
  // says:
  //   @  given from outside by this name       ~  a sum
  //   =  the value of the variable of that name       *  any        else the id of a node of the update
  bool Walk(tf::Node* node) {
    Tag tag;
    if (!Tag::Of(node, &tag) || tag.kind != tag_.kind || tag.op != node->type_string()) return false;
    if (static_cast<int>(tag.inputs.size()) != node->num_inputs()) return false;
    const auto known = nodes_.emplace(tag.id, node);
    if (!known.second) return known.first->second == node;
    for (int i = 0; i < node->num_inputs(); ++i) {
      const tf::Edge* edge = nullptr;
      if (!node->input_edge(i, &edge).ok()) return false;
      const std::string &text = tag.inputs[i], name = text.substr(text.empty() ? 0 : 1);
      const Source source(edge->src(), edge->src_output());
      if (text[0] == '*') continue;
      if (text[0] == '@') {
        if (given_.emplace(name, source).first->second != source) return false;
      } else if (text[0] == '=') {
        const Source variable = VariableOf(source);
        if (reads_.emplace(name, variable).first->second != variable) return false;
      } else if (text[0] == '~') {
        if (sums_.emplace(name, source).first->second != source) return false;
      } else {
        Tag of;
        if (!Tag::Of(source.first, &of) || of.id != text || !Walk(source.first)) return false;
      }
    }
    return true;
  }

  // The variable whose value a tensor is.
  Source VariableOf(Source source) {
    for (;;) {
      tf::Node* node = source.first;
      if (node->type_string() != "Identity" && node->type_string() != "ReadVariableOp") return source;
      const tf::Edge* edge = nullptr;
      if (!node->input_edge(0, &edge).ok()) return source;
      AddControls(node);
      source = Source(edge->src(), edge->src_output());
    }
  }

  // A kernel changes variables of its own device only (offload.level="v0" has a variable and its slots on two).
  bool IsHere(const Source& source) const {
    const tf::DataType type = source.first->output_type(source.second);
    const bool is_variable = tf::IsRefType(type) || type == tf::DT_RESOURCE;
    return !is_variable || source.first->assigned_device_name() == device_;
  }

  tf::Node* Consumer(tf::Node* node, const std::string& id) const {
    for (const tf::Edge* edge : node->out_edges()) {
      Tag tag;
      if (!edge->IsControlEdge() && Tag::Of(edge->dst(), &tag) && tag.kind == tag_.kind && tag.id == id) {
        return edge->dst();
      }
    }
    return nullptr;
  }

  void AddControls(tf::Node* node) {
    for (const tf::Edge* edge : node->in_edges()) {
      if (edge->IsControlEdge() && !edge->src()->IsSource() && inside_.count(edge->src()) == 0) {
        controls_.insert(edge->src());
      }
    }
  }

  // Whether nobody else takes what a node makes; notes whom it waits for.
  bool IsOurs(const std::string& id, tf::Node* node) {
    AddControls(node);
    for (const tf::Edge* edge : node->out_edges()) {
      if (edge->dst()->IsSink() || inside_.count(edge->dst()) != 0) continue;
      if (!(IsWrite(id) && edge->IsControlEdge())) return false;
    }
    return true;
  }

  // Whether something that the update waits for waits for a part of it.
  bool IsCircular() {
    std::vector<tf::Node*> stack;
    std::set<tf::Node*> seen;
    for (auto each = controls_.begin(); each != controls_.end();) {
      each = inside_.count(*each) != 0 ? controls_.erase(each) : std::next(each);
    }
    stack.assign(controls_.begin(), controls_.end());
    while (!stack.empty()) {
      tf::Node* node = stack.back();
      stack.pop_back();
      if (inside_.count(node) != 0) return true;
      if (!seen.insert(node).second) continue;
      for (const tf::Edge* edge : node->in_edges()) stack.push_back(edge->src());
    }
    return false;
  }

  tf::Graph* graph_;
  tf::Node* write_;
  Tag tag_;
  const Kind* kind_ = nullptr;
  std::string device_;
  std::map<std::string, tf::Node*> nodes_;  // of the update, by their ids
  std::map<std::string, Source> given_;     // from outside
  std::map<std::string, Source> reads_;     // the variables that are read
  std::map<std::string, Source> sums_;      // what the ratio is made of
  std::set<tf::Node*> inside_, controls_;   // those of nodes_; what these wait for
};

class FuseLayerWise : public tf::GraphOptimizationPass {
 public:
  tf::Status Run(const tf::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || options.graph->get() == nullptr) return tf::Status();
    tf::Graph* graph = options.graph->get();
    std::vector<std::pair<tf::Node*, Tag>> writes;
    for (tf::Node* node : graph->op_nodes()) {
      Tag tag;
      // What is left of an update is pruned where a session takes what it runs from a graph, and not in functions.
      if (node->IsArg()) return tf::Status();
      if (Tag::Of(node, &tag) && tag.id == "write_var") writes.emplace_back(node, tag);
    }
    if (writes.empty()) return tf::Status();
    if (options.session_options != nullptr && options.session_options->config.graph_options().place_pruned_graph()) {
      return tf::Status();
    }
    for (const auto& write : writes) {
      Update update(graph, write.first, write.second);
      if (update.Find()) TF_RETURN_IF_ERROR(update.Fuse());
    }
    tf::FixupSourceAndSinkEdges(graph);
    return tf::Status();
  }
};

REGISTER_OPTIMIZATION(tf::OptimizationPassRegistry::POST_PLACEMENT, 50, FuseLayerWise);

}  // namespace
}  // namespace epl_ops
