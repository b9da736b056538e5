/* Ends the use of typed_tile.inl for a dtype. */
#undef TYPED_TILE
#undef TYPED_COPY_B
#undef TYPED_VECTOR
#undef TYPED_LANES
#undef TYPED_TILE_COLS
#undef TYPED_ELEMENT
#undef TYPED_NAME
#undef TYPED_IS_WIDE
#undef TYPED_ADD
#undef TYPED_ADD_NARROW
