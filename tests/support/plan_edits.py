"""Attacks on the file of plan_files.small_plan that change a single place in it."""

GONE = object()

#: An entry that does nothing.
EMPTY = {
    "inputs": [], "outputs": [], "nodes": [], "tensors": {},
    "input_tree": None, "output_tree": None, "sizes": {}, "origins": {}, "states": {},
}  # fmt: skip

#: field at fault -> attack -> place in the file and what an attacker puts there.
EDITS = {
    "header.__metadata__": {
        "metadata_is_a_string": ("header.__metadata__", "taper"),
    },
    "header.__metadata__.format": {
        "another_format": ("header.__metadata__.format", "pt"),
        "no_format": ("header.__metadata__.format", GONE),
    },
    "header.__metadata__.note": {
        "metadata_with_a_number": ("header.__metadata__.note", 1),
    },
    "header['w']": {
        "tensor_is_an_array": ("header.w", []),
        "tensor_with_an_extra_key": ("header.w.crc", 0),
        "tensor_without_a_dtype": ("header.w.dtype", GONE),
    },
    "header['w'].dtype": {
        "unknown_dtype_code": ("header.w.dtype", "F8_E4M3"),
        "dtype_code_is_an_array": ("header.w.dtype", ["F32"]),
    },
    "header['w'].shape": {
        "shape_is_a_string": ("header.w.shape", "48"),
        "shape_of_a_file_is_null": ("header.w.shape", None),
        "shape_of_floats": ("header.w.shape", [4.0, 8.0]),
        "shape_with_a_bool": ("header.w.shape", [32, True]),
        "negative_dims": ("header.w.shape", [-4, -8]),
        "dims_whose_product_overflows": ("header.w.shape", [2**33, 2**33]),
        "dims_whose_product_python_would_not_print": ("header.w.shape", [10**4000, 10**4000]),
        "huge_dim_behind_a_zero": ("header.w.shape", [0, 2**62, 2**62]),
        "too_many_dims": ("header.w.shape", [4, 8] + [1] * 31),
        "million_dims": ("header.w.shape", [1] * 1_000_000),
    },
    "header['w'].data_offsets": {
        "size_that_contradicts_the_shape": ("header.w.shape", [4, 4]),
        "size_that_contradicts_the_dtype": ("header.w.dtype", "F64"),
        "offsets_reversed": ("header.w.data_offsets", [128, 0]),
        "negative_offsets": ("header.w.data_offsets", [-128, 0]),
        "offsets_is_null": ("header.w.data_offsets", None),
        "three_offsets": ("header.w.data_offsets", [0, 64, 128]),
        "offset_is_a_bool": ("header.w.data_offsets", [False, 128]),
        "offset_is_a_float": ("header.w.data_offsets", [0, 128.0]),
        "offset_of_4300_digits": ("header.w.data_offsets", [10**4299, 10**4299 + 128]),
    },
    "header['sample/x'].data_offsets": {
        "overlapping_tensors": ("header.sample/x.data_offsets", [64, 96]),
    },
    "plan.origins['n']": {
        "origin_of_no_size": ("plan.origins", {"n": ["h", 0]}),
    },
    "plan.states['x']": {
        "state_that_is_an_input": ("plan.states", {"x": "y"}),
    },
    "plan.tensors['b'].role": {
        "state_without_a_next_value": ("plan.tensors.b.role", "state"),
    },
    "plan.sizes": {
        "sizes_in_an_array": ("plan.sizes", [1, 4]),
    },
    "plan.sizes['n']": {
        "size_that_no_input_gives": ("plan.sizes", {"n": [1, 4]}),
        "size_with_one_limit": ("plan.sizes", {"n": [4]}),
        "size_with_limits_reversed": ("plan.sizes", {"n": [4, 1]}),
        "size_below_zero": ("plan.sizes", {"n": [-1, 4]}),
        "size_of_at_most_one": ("plan.sizes", {"n": [0, 1]}),
        "size_of_4300_digits": ("plan.sizes", {"n": [1, 10**4299]}),
        "size_beyond_all_limits": ("plan.sizes", {"n": [1, 2**60]}),
        "size_with_a_float": ("plan.sizes", {"n": [1, 4.0]}),
    },
    "plan.sizes['min']": {
        "size_named_like_a_function": ("plan.sizes", {"min": [1, 4]}),
    },
    "plan.tensors['x'].shape": {
        "dim_of_no_variable": ("plan.tensors.x.shape", ["n", 4]),
        "dim_that_is_code": ("plan.tensors.x.shape", ["__import__('os')", 4]),
    },
    "plan.tensors['extra']": {
        "tensor_that_the_plan_does_not_know": (
            "header.extra",
            {"dtype": "U8", "shape": [0], "data_offsets": [196, 196]},
        ),
    },
    "plan.tensors['w'].shape": {
        "data_of_another_shape": ("header.w.shape", [8, 4]),
        "format_of_other_data": ("plan.tensors.w.format", "panels.1"),
    },
    "plan.tensors['w'].dtype": {
        "data_of_another_dtype": ("header.w.dtype", "I32"),
    },
    "plan.tensors['w'].format": {
        "unknown_format": ("plan.tensors.w.format", "tiles"),
        "format_is_a_number": ("plan.tensors.w.format", 1),
        "format_is_an_array": ("plan.tensors.w.format", ["panels.1"]),
        "format_that_need_not_be_said": ("plan.tensors.w.format", "plain"),
        "format_without_its_parameter": ("plan.tensors.w.format", "panels"),
        "format_in_another_spelling": ("plan.tensors.w.format", "panels.01"),
        "format_of_four_dims": ("plan.tensors.w.format", "winograd.2"),
        "format_of_groups_that_do_not_divide": ("plan.tensors.w.format", "grouped_panels.3"),
        "format_of_4300_digits": ("plan.tensors.w.format", "grouped_panels." + "9" * 4300),
    },
    "plan.tensors['x'].format": {
        "input_in_panels": ("plan.tensors.x.format", "panels.1"),
    },
    "plan.tensors['y'].format": {
        "output_in_a_format": ("plan.tensors.y.format", "grouped_panels.1"),
    },
    "plan.tensors['x'].complex": {
        "complex_of_another_last_axis": ("plan.tensors.x.complex", True),
        "complex_is_false": ("plan.tensors.x.complex", False),
        "complex_is_a_number": ("plan.tensors.x.complex", 1),
    },
    "plan.tensors['w'].complex": {
        "complex_constant": ("plan.tensors.w.complex", True),
    },
    "plan.samples['x'].shape": {
        "sample_of_another_shape": ("header.sample/x.shape", [8]),
    },
    "plan.samples['x'].dtype": {
        "sample_of_another_dtype": ("header.sample/x.dtype", "I32"),
    },
    "plan": {
        "lone_surrogate_in_the_plan": ("plan.metadata.name", "\udfff"),
        "lone_surrogate_in_a_key": ("plan.\ud8ab", 1),
    },
    "plan.format_version": {
        "no_version": ("plan.format_version", GONE),
        "version_is_true": ("plan.format_version", True),
        "version_is_a_float": ("plan.format_version", 1.0),
    },
    "plan.features": {
        "no_features": ("plan.features", GONE),
        "features_in_an_object": ("plan.features", {}),
        "feature_that_is_not_used": ("plan.features", ["blocks"]),
    },
    "plan.features[0]": {
        "feature_of_a_later_version": ("plan.features", ["growing_states"]),
        "feature_is_an_array": ("plan.features", [["blocks"]]),
    },
    "plan.default": {
        "default_is_null": ("plan.default", None),
        "default_is_an_array": ("plan.default", ["forward"]),
        "default_of_two_words": ("plan.default", "for ward"),
        "default_too_long": ("plan.default", "f" * 101),
    },
    "plan.entries": {
        "entries_in_an_array": ("plan.entries", []),
    },
    "plan.samples['x']": {
        "sample_of_no_entry": ("plan.entries", {"decode": EMPTY}),
    },
    "plan.nodes": {
        "no_nodes": ("plan.nodes", GONE),
    },
    "plan.hook": {
        "unknown_key": ("plan.hook", "os.system"),
    },
    "plan.tensors": {
        "tensors_in_an_array": ("plan.tensors", []),
    },
    "plan.inputs": {
        "inputs_is_a_string": ("plan.inputs", "x"),
    },
    "plan.metadata": {
        "metadata_is_an_array": ("plan.metadata", []),
    },
    "plan.metadata.n": {
        "metadata_with_a_huge_integer": ("plan.metadata.n", 2**64),
    },
    "plan.metadata.e.float": {
        "float_that_is_none": ("plan.metadata.e", {"float": "Infinity"}),
        "float_that_is_an_array": ("plan.metadata.e", {"float": []}),
    },
    "plan.inputs[1]": {
        "input_twice": ("plan.inputs", ["x", "x"]),
    },
    "plan.inputs[0]": {
        "input_that_is_a_constant": ("plan.inputs", ["w"]),
        "input_is_an_object": ("plan.inputs", [{}]),
    },
    "plan.tensors['x'].role": {
        "input_left_out": ("plan.inputs", []),
    },
    "plan.outputs[1]": {
        "output_that_is_no_tensor": ("plan.outputs", ["y", "z"]),
    },
    "plan.tensors['y'].role": {
        "output_left_out": ("plan.outputs", []),
    },
    "plan.input_tree[0]": {
        "tree_of_another_kind": ("plan.input_tree", ["module", "x"]),
    },
    "plan.input_tree[1][0][1]": {
        "tree_that_names_no_input": ("plan.input_tree", ["tuple", [["tensor", "y"]]]),
    },
    "plan.input_tree[1][0]": {
        "dict_tree_of_a_string": ("plan.input_tree", ["dict", ["ab"]]),
        "dict_tree_without_a_key": ("plan.input_tree", ["dict", [["tensor"]]]),
        "class_that_is_code": ("plan.input_tree", ["namedtuple", ["A(int)", []]]),
        "class_that_is_a_keyword": ("plan.input_tree", ["namedtuple", ["class", []]]),
    },
    "plan.input_tree[1][0][0]": {
        "dict_tree_with_an_array_as_key": ("plan.input_tree", ["dict", [[[], ["value", 1]]]]),
    },
    "plan.input_tree[1][1][0]": {
        "dict_tree_with_a_key_twice": (
            "plan.input_tree",
            ["dict", [["a", ["value", 1]], ["a", ["value", 1]]]],
        ),
    },
    "plan.input_tree[1][1][0][0]": {
        "field_that_is_code": (
            "plan.input_tree",
            ["namedtuple", ["A", [["a=print()", ["tensor", "x"]]]]],
        ),
        "field_that_namedtuple_refuses": (
            "plan.input_tree",
            ["namedtuple", ["A", [["_a", ["tensor", "x"]]]]],
        ),
    },
    "plan.input_tree[1]": {
        "tree_that_names_an_array": ("plan.input_tree", ["tensor", ["x"]]),
        "list_tree_of_an_object": ("plan.input_tree", ["list", {}]),
        "number_of_many_elements": ("plan.input_tree", ["number", "x"]),
        "named_tuple_of_a_string": ("plan.input_tree", ["namedtuple", "A"]),
    },
    "plan.input_tree[1][1]": {
        "named_tuple_of_an_object": ("plan.input_tree", ["namedtuple", ["A", {}]]),
    },
    "plan.input_tree": {
        "tree_that_is_no_call": ("plan.input_tree", ["tensor", "x"]),
        "tree_without_an_input": ("plan.input_tree", ["tuple", [["tuple", []], ["dict", []]]]),
        "tree_with_an_input_twice": (
            "plan.input_tree",
            ["tuple", [["tuple", [["tensor", "x"], ["tensor", "x"]]], ["dict", []]]],
        ),
    },
    "plan.input_tree[1][1][1][0][0]": {
        "argument_called_by_a_number": (
            "plan.input_tree",
            ["tuple", [["tuple", []], ["dict", [[1, ["tensor", "x"]]]]]],
        ),
    },
    "plan.output_tree": {
        "tree_is_a_string": ("plan.output_tree", "ab"),
        "tree_of_three": ("plan.output_tree", ["tensor", "y", "y"]),
    },
    "plan.tensors['h']": {
        "tensor_is_a_string": ("plan.tensors.h", "h"),
    },
    "plan.tensors['h'].role": {
        "tensor_without_a_role": ("plan.tensors.h.role", GONE),
        "unknown_role": ("plan.tensors.h.role", "weight"),
        "reserved_role": ("plan.tensors.h.role", "state"),
        "role_is_an_array": ("plan.tensors.h.role", []),
    },
    "plan.tensors['h'].address": {
        "tensor_with_an_address": ("plan.tensors.h.address", 0),
    },
    "plan.tensors['h'].dtype": {
        "unknown_dtype": ("plan.tensors.h.dtype", "float128"),
        "dtype_is_null": ("plan.tensors.h.dtype", None),
        "dtype_is_an_array": ("plan.tensors.h.dtype", ["float32"]),
    },
    "plan.tensors['h'].shape": {
        "shape_with_a_name": ("plan.tensors.h.shape", [2, "n"]),
        "shape_is_null": ("plan.tensors.h.shape", None),
        "tensor_of_negative_size": ("plan.tensors.h.shape", [2, -8]),
        "tensor_that_overflows": ("plan.tensors.h.shape", [2**32, 2**32]),
        "dims_of_4300_digits": ("plan.tensors.h.shape", [10**4299, 10**4299]),
    },
    "plan.tensors['r'].root": {
        "root_that_is_no_tensor": ("plan.tensors.r.root", "heap"),
        "root_is_an_array": ("plan.tensors.r.root", ["h"]),
        "root_is_a_number": ("plan.tensors.r.root", 0),
    },
    "plan.tensors['h'].root": {
        "roots_in_a_circle": ("plan.tensors.h.root", "r"),
    },
    "plan.tensors['x'].root": {
        "input_inside_a_constant": ("plan.tensors.x.root", "w"),
    },
    "plan.tensors['y'].root": {
        "output_inside_the_arena": ("plan.tensors.y.root", "t"),
    },
    "plan.tensors['w'].root": {
        "constant_inside_the_arena": ("plan.tensors.w.root", "h"),
    },
    "plan.tensors['x'].offset": {
        "input_at_an_offset": ("plan.tensors.x.offset", 64),
    },
    "plan.tensors['h'].offset": {
        "negative_offset": ("plan.tensors.h.offset", -64),
        "offset_is_true": ("plan.tensors.h.offset", True),
        "root_at_an_offset": ("plan.tensors.h.offset", 64),
        "root_at_a_huge_offset": ("plan.tensors.h.offset", 2**64),
    },
    "plan.tensors['s'].offset": {
        "view_beyond_its_root": ("plan.tensors.s.offset", 20),
        "view_between_two_items": ("plan.tensors.s.offset", 2),
        "view_beside_what_it_shows": ("plan.tensors.s.offset", 16),
        "view_with_strides_that_leave_its_root": ("plan.tensors.s.strides", [2**40, 1]),
        "view_with_strides_before_its_root": ("plan.tensors.s.strides", [-8, 1]),
    },
    "plan.tensors['s'].strides": {
        "view_of_something_else": ("plan.tensors.s.strides", [4, 1]),
        "strides_for_other_dims": ("plan.tensors.s.strides", [8]),
        "strides_of_floats": ("plan.tensors.s.strides", [8.0, 1.0]),
        "strides_is_a_number": ("plan.tensors.s.strides", 8),
        "strides_of_4300_digits": ("plan.tensors.s.strides", [10**4299, 10**4299]),
    },
    "plan.tensors['t'].strides": {
        "strides_that_fold_an_output_onto_itself": ("plan.tensors.t.strides", [0, 0]),
    },
    "plan.tensors['r'].strides": {
        "strided_output_in_place": ("plan.tensors.r.strides", [1, 2]),
    },
    "plan.nodes[0]": {
        "node_is_a_string": ("plan.nodes.0", "MATMUL"),
        "too_few_inputs": ("plan.nodes.0.inputs", ["x"]),
        "inputs_that_do_not_fit": ("plan.nodes.0.inputs", ["w", "x"]),
        "input_that_may_not_be_absent": ("plan.nodes.0.inputs", [None, "w"]),
    },
    "plan.nodes[0].source": {
        "node_without_a_source": ("plan.nodes.0.source", GONE),
        "source_is_a_number": ("plan.nodes.0.source", 7),
    },
    "plan.nodes[0].code": {
        "node_with_code": ("plan.nodes.0.code", "import os"),
    },
    "plan.nodes[0].op": {
        "unknown_op": ("plan.nodes.0.op", "SYSTEM"),
        "op_is_an_array": ("plan.nodes.0.op", ["MATMUL"]),
    },
    "plan.nodes[0].inputs": {
        "node_inputs_is_a_string": ("plan.nodes.0.inputs", "xw"),
    },
    "plan.nodes[0].inputs[1]": {
        "unknown_tensor": ("plan.nodes.0.inputs", ["x", "ghost"]),
        "input_name_is_an_array": ("plan.nodes.0.inputs", ["x", ["w"]]),
        "input_that_is_false": ("plan.nodes.0.inputs", ["x", False]),
    },
    "plan.nodes[1].inputs[0]": {
        "cycle_of_one": ("plan.nodes.1.inputs", ["r"]),
        "cycle_of_two": ("plan.nodes.1.inputs", ["s"]),
    },
    "plan.nodes[1]": {
        "too_many_inputs": ("plan.nodes.1.inputs", ["h"] * 9),
    },
    "plan.nodes[0].outputs[0]": {
        "output_is_no_tensor": ("plan.nodes.0.outputs", ["ghost"]),
        "output_name_is_an_array": ("plan.nodes.0.outputs", [["h"]]),
        "output_name_is_null": ("plan.nodes.0.outputs", [None]),
        "node_that_produces_an_input": ("plan.nodes.0.outputs", ["x"]),
        "node_that_produces_a_constant": ("plan.nodes.0.outputs", ["b"]),
        "output_of_another_dtype": ("plan.tensors.h.dtype", "int32"),
    },
    "plan.nodes[0].outputs": {
        "outputs_is_a_string": ("plan.nodes.0.outputs", "h"),
        "node_without_outputs": ("plan.nodes.0.outputs", []),
        "one_output_too_many": ("plan.nodes.0.outputs", ["h", "r"]),
    },
    "plan.nodes[0].outputs[1]": {
        "one_output_twice": ("plan.nodes.0.outputs", ["h", "h"]),
    },
    "plan.nodes[1].outputs[0]": {
        "tensor_defined_twice": ("plan.nodes.1.outputs", ["h"]),
    },
    "plan.nodes[0].blocks": {
        "block_of_an_op_without_blocks": (
            "plan.nodes.0.blocks",
            [{"inputs": [], "outputs": [], "nodes": [], "tensors": {}}],
        ),
        "blocks_that_need_not_be_said": ("plan.nodes.0.blocks", []),
        "blocks_in_an_object": ("plan.nodes.0.blocks", {"then": {}}),
    },
    "plan.nodes[0].blocks[0]": {
        "block_is_a_string": ("plan.nodes.0.blocks", ["then"]),
    },
    "plan.nodes[0].blocks[0].inputs": {
        "block_without_inputs": (
            "plan.nodes.0.blocks",
            [{"outputs": [], "nodes": [], "tensors": {}}],
        ),
    },
    "plan.nodes[0].targets": {
        "targets_that_need_not_be_said": ("plan.nodes.0.targets", []),
        "targets_is_a_string": ("plan.nodes.0.targets", "aten.mm.default"),
        "target_is_a_number": ("plan.nodes.0.targets", [1]),
    },
    "plan.nodes[0].arguments": {
        "arguments_are_an_object": ("plan.nodes.0.arguments", {}),
        "arguments_are_null": ("plan.nodes.0.arguments", None),
        "arguments_are_no_json": ("plan.nodes.0.arguments", "{"),
        "arguments_are_the_json_of_an_array": ("plan.nodes.0.arguments", "[1]"),
        "arguments_have_no_target": ("plan.nodes.0.arguments", "{}"),
    },
    "plan.nodes[0].attrs": {
        "attrs_is_an_array": ("plan.nodes.0.attrs", []),
    },
    "plan.nodes[0].attrs.float": {
        "attrs_are_a_number": ("plan.nodes.0.attrs", {"float": "inf"}),
    },
    "plan.nodes[0].attrs.beta": {
        "unknown_attr": ("plan.nodes.0.attrs", {"beta": 1.0}),
    },
    "plan.nodes[0].attrs.alpha": {
        "attr_is_a_string": ("plan.nodes.0.attrs", {"alpha": "1.0"}),
        "attr_is_a_bool": ("plan.nodes.0.attrs", {"alpha": True}),
    },
    "plan.nodes[2].attrs.axis": {
        "attr_is_missing": ("plan.nodes.2.attrs.axis", GONE),
        "attr_is_a_float": ("plan.nodes.2.attrs.axis", 1.0),
    },
    "plan.nodes[2].attrs.stop": {
        "attr_is_a_huge_integer": ("plan.nodes.2.attrs.stop", 2**63),
    },
    "plan.nodes[2]": {
        "slice_beyond_its_axis": ("plan.nodes.2.attrs.stop", 9),
        "slice_of_no_axis": ("plan.nodes.2.attrs.axis", 2),
    },
    "plan.nodes[4].attrs.shape": {
        "attr_of_mixed_types": ("plan.nodes.4.attrs.shape", [8, "1"]),
    },
    "plan.nodes[4]": {
        "reshape_to_more_elements": ("plan.nodes.4.attrs.shape", [9]),
        "reshape_that_overflows": ("plan.nodes.4.attrs.shape", [2**32, 2**32, 8]),
    },
    "header['keep'].data_offsets": {
        "tensor_at_the_end_of_memory": ("header.keep.data_offsets", [2**63 - 4, 2**63]),
    },
}
