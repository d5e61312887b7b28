// A graph of a checked catalogue as the driver's template: rebuilt in stored order, and read back and compared.
#pragma once
#include <memory>
#include <span>

#include "columns.h"
#include "driver.h"

namespace hg {

using Functions = std::span<const std::shared_ptr<Function>>;  // in the order of core.json

// Adds every node of the graph, in stored order, with the edges that lead to it. FormatError for columns that do not
// fit together (check_columns has refused such before) or that ask for what this driver contract does not have.
std::shared_ptr<Template> build_template(Device &device, const ColumnSet &columns, size_t graph, Functions functions);

// Reads the template back from the driver. DriverError naming the first node or edge that is not as stored: count,
// order, function, launch, form and bytes of the parameters, attributes, memset, copy, edge data.
void compare_template(const Template &made, const ColumnSet &columns, size_t graph, Functions functions);

}  // namespace hg
