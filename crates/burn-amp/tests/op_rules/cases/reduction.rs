//! Reductions, scans and order statistics.

use super::*;

cases! {
    float {
        float_sum(x: normal([3, 4])) => B::float_sum(x);
        float_sum_dim(x: normal([3, 4])) => B::float_sum_dim(x, 1);
        float_prod(x: positive([3, 4])) => B::float_prod(x);
        float_prod_dim(x: positive([3, 4])) => B::float_prod_dim(x, 1);
        float_mean(x: normal([3, 4])) => B::float_mean(x);
        float_mean_dim(x: normal([3, 4])) => B::float_mean_dim(x, 1);
        float_cumsum(x: normal([3, 4])) => B::float_cumsum(x, 1);
        float_cumprod(x: positive([3, 4])) => B::float_cumprod(x, 1);
        float_cummin(x: normal([3, 4])) => B::float_cummin(x, 1);
        float_cummax(x: normal([3, 4])) => B::float_cummax(x, 1);
        float_max(x: normal([3, 4])) => B::float_max(x);
        float_max_dim(x: normal([3, 4])) => B::float_max_dim(x, 1);
        float_min(x: normal([3, 4])) => B::float_min(x);
        float_min_dim(x: normal([3, 4])) => B::float_min_dim(x, 1);
        float_max_abs(x: normal([3, 4])) => B::float_max_abs(x);
        float_max_abs_dim(x: normal([3, 4])) => B::float_max_abs_dim(x, 1);
        float_topk(x: normal([3, 4])) => B::float_topk(x, 1, 2);
        float_sort(x: normal([3, 4])) => B::float_sort(x, 1, true);
    }
    indexed {
        float_max_dim_with_indices(x: normal([3, 4])) => {
            B::float_max_dim_with_indices(x, 1, ints::<B>())
        };
        float_min_dim_with_indices(x: normal([3, 4])) => {
            B::float_min_dim_with_indices(x, 1, ints::<B>())
        };
        float_sort_with_indices(x: normal([3, 4])) => {
            B::float_sort_with_indices(x, 1, false, ints::<B>())
        };
    }
    int {
        float_argmax(x: normal([3, 4])) => B::float_argmax(x, 1, ints::<B>());
        float_argmin(x: normal([3, 4])) => B::float_argmin(x, 1, ints::<B>());
        float_argsort(x: normal([3, 4])) => B::float_argsort(x, 1, false, ints::<B>());
    }
    bool {
        float_any(x: normal([3, 4])) => B::float_any(x, bools::<B>());
        float_any_dim(x: normal([3, 4])) => B::float_any_dim(x, 1, bools::<B>());
        float_all(x: normal([3, 4])) => B::float_all(x, bools::<B>());
        float_all_dim(x: normal([3, 4])) => B::float_all_dim(x, 1, bools::<B>());
    }
}
