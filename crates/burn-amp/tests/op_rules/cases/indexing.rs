//! Layout, indexing and selection.

use burn::tensor::ops::GridSampleOptions;
use burn::tensor::{IndexingUpdateOp, Slice};

use super::*;

/// The middle of a [3, 4] tensor.
fn middle() -> [Slice; 2] {
    [Slice::from(1..3), Slice::from(0..2)]
}

cases! {
    float {
        float_transpose(x: normal([3, 4])) => B::float_transpose(x);
        float_swap_dims(x: normal([2, 3, 4])) => B::float_swap_dims(x, 0, 2);
        float_permute(x: normal([2, 3, 4])) => B::float_permute(x, &[2, 0, 1]);
        float_flip(x: normal([2, 3, 4])) => B::float_flip(x, &[1]);
        float_reshape(x: normal([3, 4])) => B::float_reshape(x, Shape::new([2, 6]));
        float_expand(x: normal([3, 1])) => B::float_expand(x, Shape::new([3, 4]));
        float_repeat_dim(x: normal([3, 4])) => B::float_repeat_dim(x, 1, 2);
        float_unfold(x: normal([3, 6])) => B::float_unfold(x, 1, 2, 2);
        float_cat(a: normal([2, 3]), b: normal([1, 3]), c: normal([2, 3])) => {
            B::float_cat(vec![a, b, c], 0)
        };
        float_slice(x: normal([3, 4])) => B::float_slice(x, &middle());
        float_slice_assign(x: normal([3, 4]), value: normal([2, 2])) => {
            B::float_slice_assign(x, &middle(), value)
        };
        float_select(x: normal([3, 4])) => {
            B::float_select(x, 0, indices::<B, 1>(&[2, 0, 2], [3]))
        };
        float_select_add(x: normal([3, 4]), value: normal([2, 4])) => {
            B::float_select_add(x, 0, indices::<B, 1>(&[2, 0], [2]), value)
        };
        float_gather(x: normal([2, 3])) => {
            B::float_gather(1, x, indices::<B, 2>(&[2, 0, 1, 1], [2, 2]))
        };
        float_scatter_add(x: normal([2, 3]), value: normal([2, 2])) => {
            B::float_scatter_add(1, x, indices::<B, 2>(&[2, 0, 1, 2], [2, 2]), value)
        };
        float_gather_nd(x: normal([3, 4])) => {
            B::float_gather_nd(x, indices::<B, 2>(&[2, 0, 1, 3], [2, 2]))
        };
        float_scatter_nd(x: normal([3, 4]), values: normal([2])) => {
            let at = indices::<B, 2>(&[2, 0, 1, 3], [2, 2]);
            B::float_scatter_nd(x, at, values, IndexingUpdateOp::Add)
        };
        float_mask_where(x: normal([2, 3, 4]), value: normal([2, 3, 4])) => {
            B::float_mask_where(x, mask::<B, 3>([2, 3, 4]), value)
        };
        float_mask_fill(x: normal([3, 4])) => {
            B::float_mask_fill(x, mask::<B, 2>([3, 4]), 0.1.into())
        };
        float_grid_sample_2d(x: normal([1, 2, 4, 4]), grid: unit([1, 3, 3, 2])) => {
            B::float_grid_sample_2d(x, grid, GridSampleOptions::default())
        };
    }
}
