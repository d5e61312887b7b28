#include "cuda_nodes.h"

#include <algorithm>
#include <cstring>

#include "cuda_fidelity.h"
#include "cuda_owned.h"
#include "cuda_pointers.h"
#include "text.h"

namespace hg {
namespace {

constexpr uint32_t kAttributeIds = 64;  // read up to here: drivers may have attributes that this build does not know
// Attributes of launches and streams: no node has them.
constexpr uint32_t kNoNodeAttributes[] = {0, 3, 6, 7, 12};

bool of_nodes(uint32_t id) {
  return std::find(std::begin(kNoNodeAttributes), std::end(kNoNodeAttributes), id) == std::end(kNoNodeAttributes);
}

[[noreturn]] void refuse(const char *doing, const std::string &found, const std::string &required,
                         const std::string &hint) {
  throw Error("CaptureError", doing, found, required, hint);
}

// The members of a value, as the driver reports it, zeros behind them; what is unknown is taken whole.
using Value = std::array<uint8_t, 64>;
struct Read {
  CUresult result;
  Value value;
};

Read read_attribute(const CudaApi &api, CUgraphNode node, uint32_t id) {
  alignas(16) uint8_t room[256] = {};  // a later driver's value may be larger than ours
  static_assert(sizeof(CUkernelNodeAttrValue) == 64);
  Read read{api.cuGraphKernelNodeGetAttribute(node, static_cast<CUkernelNodeAttrID>(id),
                                              reinterpret_cast<CUkernelNodeAttrValue *>(room)),
            {}};
  const FidelityRow *row = fidelity(Aspect::attribute, id);
  std::copy_n(room, row && row->bytes ? row->bytes : read.value.size(), read.value.begin());
  return read;
}

std::vector<NodeAttribute> read_attributes(const CudaContext &context, CUgraphNode node, const CudaFunction &function,
                                           const KernelNode &launch) {
  const char *doing = "reading the attributes of a kernel node";
  std::vector<NodeAttribute> out;
  const auto plain_of_function = function.plain(launch, node);
  for (const auto &[id, plain] : *plain_of_function) {
    const auto [result, value] = read_attribute(context.api(), node, id);
    context.check(result, "cuGraphKernelNodeGetAttribute", doing);
    if (value == plain) continue;
    const FidelityRow *row = fidelity(Aspect::attribute, id);
    if (!row || !row->kept)
      refuse(doing, text("attribute ", row ? row->name : "without a name", " (", id, ") on kernel ", function.name()),
             "attributes that can be kept", row ? row->how : "update Heliograph: this build does not know the attribute");
    out.push_back({id, value});
  }
  return out;
}

CUgraphNodeParams copy_params(const MemcpyNode &copy, CUcontext context) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  CUDA_MEMCPY3D &to = params.memcpy.copyParams;
  to.srcMemoryType = to.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  to.srcDevice = copy.from;
  to.dstDevice = copy.to;
  to.WidthInBytes = copy.bytes;
  to.Height = to.Depth = 1;
  params.memcpy.copyCtx = context;
  return params;
}

CUgraphNodeParams memset_params(const MemsetNode &memset, CUcontext context) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEMSET;
  params.memset.dst = memset.address;
  params.memset.pitch = memset.pitch;
  params.memset.value = memset.value;
  params.memset.elementSize = memset.element;
  params.memset.width = memset.width;
  params.memset.height = memset.height;
  params.memset.ctx = context;
  return params;
}

CUgraphNode add(const CudaContext &context, CUgraph graph, CUgraphNodeParams &params, const char *doing) {
  CUgraphNode added = nullptr;
  context.check(context.api().cuGraphAddNode(&added, graph, nullptr, nullptr, 0, &params), "cuGraphAddNode", doing);
  return added;
}

// The driver copies the parameters: `bytes` need only live during the call.
CUresult add_launch(const CudaContext &context, CUgraph graph, const CudaFunction &function, const KernelNode &k,
                    CUgraphNode &added) {
  std::vector<uint8_t> bytes = k.params;
  std::vector<void *> arguments = function.arguments(bytes);  // checks the size for both forms
  size_t size = bytes.size();
  void *buffer[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, bytes.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                    CU_LAUNCH_PARAM_END};
  const bool one = k.form == ParamForm::buffer && size;
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  params.kernel = {function.handle(), k.grid.x, k.grid.y, k.grid.z, k.block.x, k.block.y, k.block.z, k.shared_bytes,
                   one ? nullptr : arguments.data(), one ? buffer : nullptr, nullptr, nullptr};
  return context.api().cuGraphAddNode(&added, graph, nullptr, nullptr, 0, &params);
}

CUgraphNode add_kernel(const CudaContext &context, CUgraph graph, const KernelNode &k) {
  const auto function = cuda_function(k.function);
  function->allow(k);
  CUgraphNode node = nullptr;
  context.check(add_launch(context, graph, *function, k, node), "cuGraphAddNode",
                ("adding kernel " + function->name()).c_str());
  for (const NodeAttribute &attribute : k.attributes) {
    CUkernelNodeAttrValue value{};
    std::memcpy(&value, attribute.value.data(), sizeof value);
    const CUresult result = context.api().cuGraphKernelNodeSetAttribute(
        node, static_cast<CUkernelNodeAttrID>(attribute.id), &value);
    if (result != CUDA_SUCCESS) context.api().cuGraphDestroyNode(node);
    context.check(result, "cuGraphKernelNodeSetAttribute",
                  text("setting attribute ", attribute.id, " of a node of kernel ", function->name()).c_str());
  }
  return node;
}

// The buffer that `extra` leads to; nothing if there is none.
std::span<const uint8_t> buffer_of(void *const *extra) {
  const uint8_t *data = nullptr;
  size_t size = 0;
  for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) data = static_cast<const uint8_t *>(extra[1]);
    if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<const size_t *>(extra[1]);
  }
  return {data, data ? size : 0};
}

CUDA_KERNEL_NODE_PARAMS launch_of(const CudaContext &context, CUgraphNode node) {
  CUDA_KERNEL_NODE_PARAMS params{};
  context.check(context.api().cuGraphKernelNodeGetParams(node, &params), "cuGraphKernelNodeGetParams",
                "reading a kernel node");
  return params;
}

std::string type_name(uint32_t type) {
  const FidelityRow *row = fidelity(Aspect::node, type);
  return text(row ? row->name : "without a name", " (", type, ")");
}

// "kernel f", "a node of type MEMSET (2)"
std::string describe(const std::shared_ptr<CudaContext> &context, CUgraphNode node) {
  const CUgraphNodeType type = node_type(*context, node);
  if (type != CU_GRAPH_NODE_TYPE_KERNEL) return "a node of type " + type_name(type);
  const CUDA_KERNEL_NODE_PARAMS params = launch_of(*context, node);
  return "kernel " + cuda_function(context, params.func, params.kern)->name();
}

KernelNode read_kernel(const std::shared_ptr<CudaContext> &context, CUgraphNode node) {
  const CUDA_KERNEL_NODE_PARAMS params = launch_of(*context, node);
  const auto function = cuda_function(context, params.func, params.kern);
  KernelNode out;
  out.function = function;
  out.grid = {params.gridDimX, params.gridDimY, params.gridDimZ};
  out.block = {params.blockDimX, params.blockDimY, params.blockDimZ};
  out.shared_bytes = params.sharedMemBytes;
  if (function->param_bytes()) {
    out.form = params.kernelParams ? ParamForm::array : ParamForm::buffer;
    out.params = params.kernelParams ? function->gather(params.kernelParams) : function->gather(buffer_of(params.extra));
  }
  out.attributes = read_attributes(*context, node, *function, out);
  return out;
}

MemsetNode read_memset(const CudaContext &context, CUgraphNode node) {
  CUDA_MEMSET_NODE_PARAMS params{};
  context.check(context.api().cuGraphMemsetNodeGetParams(node, &params), "cuGraphMemsetNodeGetParams",
                "reading a memset node");
  MemsetNode out{params.dst, params.value, params.width, params.elementSize, params.height,
                 params.height > 1 ? params.pitch : 0};
  if (out.element < 4) out.value &= (1u << (8 * out.element)) - 1;  // what the driver uses of it
  return out;
}

// One end of a copy as a device address, or a refusal.
uint64_t endpoint(const CudaContext &context, const char *which, CUmemorytype type, CUdeviceptr address, size_t x,
                  size_t y, size_t z) {
  const char *doing = "reading a memcpy node";
  const char *required = "a copy of one row between device addresses";
  if (type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
    refuse(doing, text("a ", which, " in ", type == CU_MEMORYTYPE_ARRAY ? "an array" : "host memory"), required,
           "copy to or from a buffer of the device, and move it to the host outside the graph");
  if (y || z) refuse(doing, text("a ", which, " that begins in another row"), required, "copy contiguous memory");
  const auto info = pointer_info(context, address + x);
  if (info && info->kind != PointerInfo::Kind::device)
    refuse(doing, text("a ", which, " at ", hex(address + x), ", ", name_of(info->kind), " memory"), required,
           "copy to or from a buffer of the device, and move it to the host outside the graph");
  return address + x;
}

MemcpyNode read_memcpy(const CudaContext &context, CUgraphNode node) {
  CUDA_MEMCPY3D params{};
  context.check(context.api().cuGraphMemcpyNodeGetParams(node, &params), "cuGraphMemcpyNodeGetParams",
                "reading a memcpy node");
  if (params.Height > 1 || params.Depth > 1)
    refuse("reading a memcpy node", text("a copy of ", std::max(params.Height, params.Depth), " rows"),
           "a copy of one row between device addresses", "make the tensors contiguous before copying");
  return {endpoint(context, "destination", params.dstMemoryType, params.dstDevice, params.dstXInBytes, params.dstY,
                   params.dstZ),
          endpoint(context, "source", params.srcMemoryType, params.srcDevice, params.srcXInBytes, params.srcY,
                   params.srcZ),
          params.WidthInBytes};
}

}  // namespace

void tell_nodes(Error &error, const std::vector<uint32_t> &nodes) {
  std::string numbers;
  for (uint32_t node : nodes) numbers += text(numbers.empty() ? "" : ", ", "node ", node);
  error.found = numbers + ": " + error.found;
  error.nodes = nodes;
}

CUgraphNode add_node(const CudaContext &context, CUgraph graph, const Node &node) {
  switch (node.kind) {
    case NodeKind::kernel: return add_kernel(context, graph, node.kernel);
    case NodeKind::memset: {
      CUgraphNodeParams params = memset_params(node.memset, context.handle());
      return add(context, graph, params, "adding a memset");
    }
    case NodeKind::memcpy: {
      CUgraphNodeParams params = copy_params(node.memcpy, context.handle());
      return add(context, graph, params, "adding a copy");
    }
    case NodeKind::empty: break;
  }
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_EMPTY;
  return add(context, graph, params, "adding an empty node");
}

CUgraphNodeType node_type(const CudaContext &context, CUgraphNode node) {
  CUgraphNodeType type{};
  context.check(context.api().cuGraphNodeGetType(node, &type), "cuGraphNodeGetType", "reading a node");
  return type;
}

void refuse_type(uint32_t type) {
  const FidelityRow *row = fidelity(Aspect::node, type);
  refuse("reading a node", "a node of type " + type_name(type),
         "kernel, memcpy, memset and empty nodes, graphs of them, and events of which both ends are inside",
         row ? text("leave this kind of work out of the capture: ", row->how)
             : std::string("update Heliograph: this build does not know the type"));
}

Node read_node(const std::shared_ptr<CudaContext> &context, CUgraphNode handle, CUgraphNodeType type) {
  Node node;
  node.kind = static_cast<NodeKind>(type);
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: node.kernel = read_kernel(context, handle); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: node.memset = read_memset(*context, handle); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: node.memcpy = read_memcpy(*context, handle); break;
    case CU_GRAPH_NODE_TYPE_EMPTY: break;
    default: refuse_type(type);
  }
  return node;
}

void check_edge(const std::shared_ptr<CudaContext> &context, CUgraphNode from, CUgraphNode to,
                const CUgraphEdgeData &data) {
  const char *doing = "reading an edge";
  const bool reserved = std::any_of(std::begin(data.reserved), std::end(data.reserved), [](uint8_t b) { return b; });
  const FidelityRow *type = fidelity(Aspect::edge, data.type), *port = fidelity(Aspect::port, data.from_port);
  // A programmatic edge begins at one of the two early ports, and the programmatic port has no other edges.
  const bool fit = data.type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
                       ? data.from_port != CU_GRAPH_KERNEL_NODE_PORT_DEFAULT
                       : data.from_port != CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
  if (type && type->kept && port && port->kept && fit && !data.to_port && !reserved) return;
  refuse(doing,
         text("an edge of type ", data.type, " from port ", data.from_port, " to port ", data.to_port,
              reserved ? " with reserved bytes set" : "", ", from ", describe(context, from), " to ",
              describe(context, to)),
         "type and port (0, 0), (0, 2), (1, 1) or (1, 2)", "update Heliograph, or leave this dependency out");
}

CudaFunction::Plain plain_attributes(const CudaFunction &function, const KernelNode &like, CUgraphNode node) {
  const char *doing = "reading the attributes of a plain node";
  const auto &context = function.context();
  const CudaApi &api = context->api();
  CudaOwned<CUgraph, &CudaApi::cuGraphDestroy> graph(context);
  context->check(api.cuGraphCreate(graph.out(), 0), "cuGraphCreate", doing);
  KernelNode launch = like;  // the grid and block that the function is known to accept
  launch.shared_bytes = 0;
  launch.form = ParamForm::array;
  CUgraphNode made = nullptr;
  const CUresult added = add_launch(*context, graph.get(), function, launch, made);
  // A function that must not be launched plainly (a cluster size is required): then all that is not zero is kept.
  if (added != CUDA_ERROR_INVALID_VALUE && added != CUDA_ERROR_INVALID_CLUSTER_SIZE)
    context->check(added, "cuGraphAddNode", doing);
  CudaFunction::Plain plain;
  for (uint32_t id = 0; id < kAttributeIds; ++id) {
    if (!of_nodes(id)) continue;
    const auto [result, value] = read_attribute(api, made ? made : node, id);
    if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED) continue;  // not of this driver
    context->check(result, "cuGraphKernelNodeGetAttribute", doing);
    plain[id] = made ? value : Value{};
  }
  return plain;
}

}  // namespace hg
