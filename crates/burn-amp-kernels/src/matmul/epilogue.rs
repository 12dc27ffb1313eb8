//! What happens to a sum on its way from the accumulator to memory: the bias is added in f32, and the
//! result is rounded once, to the type it is stored in.
//!
//! To the product itself its results are f32 in a view of the output; writing to that view does the
//! rest. Bias and result type are thus nothing that a routine of cubek has to know.

use std::marker::PhantomData;

use cubecl::prelude::barrier::BarrierExpand;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::{Coords1d, Layout, LayoutExpand, VirtualLayout};
use cubecl::std::tensor::{
    View, ViewOperations, ViewOperationsExpand, ViewOperationsMut, ViewOperationsMutExpand,
};
use cubek::matmul::components::global::memory::GlobalLayoutConfig;
use cubek::matmul::launch::{BatchedCoords, MatmulArgs, TensorMapInputs};

/// The output, of vectors `S` of the stored type, and the bias of each column.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Output<S: Float, N: Size> {
    view: View<Vector<S, N>, BatchedCoords, ReadWrite>,
    batch: VirtualLayout<Coords1d, Coords1d>,
    bias: ComptimeOption<View<f32, Coords1d>>,
}

/// Operands that are read through their strides.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct StridedInputs<Lhs: CubePrimitive, Rhs: CubePrimitive> {
    lhs: View<Lhs, BatchedCoords>,
    lhs_batch: VirtualLayout<Coords1d, Coords1d>,
    rhs: View<Rhs, BatchedCoords>,
    rhs_batch: VirtualLayout<Coords1d, Coords1d>,
}

/// The view that a product writes its f32 results to.
#[derive(CubeType, Clone, Copy)]
#[allow(dead_code, reason = "read in what the macro expands to")]
struct Epilogue<S: Float, N: Size> {
    view: View<Vector<S, N>, BatchedCoords, ReadWrite>,
    bias: ComptimeOption<View<f32, Coords1d>>,
}

#[cube]
fn store<E: CubePrimitive, S: Float>(
    view: View<Vector<S, E::Size>, BatchedCoords, ReadWrite>,
    bias: ComptimeOption<View<f32, Coords1d>>,
    pos: BatchedCoords,
    value: E,
) {
    let sum = Vector::<f32, E::Size>::cast_from(value);
    #[comptime]
    let sum = match bias {
        ComptimeOption::Some(bias) => {
            let mut shifted = Vector::<f32, E::Size>::empty();
            #[unroll]
            for lane in 0..E::Size::value() {
                shifted[lane] = sum[lane] + bias[pos.2 as usize + lane];
            }
            shifted
        }
        ComptimeOption::None => sum,
    };
    view.write(pos, Vector::cast_from(sum));
}

/// The coordinates of a view, unchanged.
#[derive(CubeType, Clone, Copy)]
struct Same {
    shape: BatchedCoords,
}

#[cube]
impl Layout for Same {
    type Coordinates = BatchedCoords;
    type SourceCoordinates = BatchedCoords;

    fn to_source_pos(&self, pos: Self::Coordinates) -> Self::SourceCoordinates {
        pos
    }

    fn to_source_pos_checked(&self, pos: Self::Coordinates) -> (Self::SourceCoordinates, bool) {
        (pos, true.runtime())
    }

    fn shape(&self) -> Self::Coordinates {
        self.shape
    }

    fn is_in_bounds(&self, _pos: Self::Coordinates) -> bool {
        // The output's own layout looks.
        true.runtime()
    }
}

impl<S: Float, N: Size> Vectorized for Epilogue<S, N> {}
impl<S: Float, N: Size> VectorizedExpand for EpilogueExpand<S, N> {
    fn vector_size(&self) -> cubecl::ir::VectorSize {
        self.view.vector_size()
    }
}

const WRITE_ONLY: &str = "a product does not read its output";

impl<E: CubePrimitive<Size = N>, S: Float, N: Size> ViewOperations<E, BatchedCoords>
    for Epilogue<S, N>
{
}
impl<E: CubePrimitive<Size = N>, S: Float, N: Size> ViewOperationsExpand<E, BatchedCoords>
    for EpilogueExpand<S, N>
{
    fn __expand_read_method(
        &self,
        _scope: &mut Scope,
        _pos: <BatchedCoords as CubeType>::ExpandType,
    ) -> E::ExpandType {
        panic!("{WRITE_ONLY}")
    }

    fn __expand_read_checked_method(
        &self,
        _scope: &mut Scope,
        _pos: <BatchedCoords as CubeType>::ExpandType,
    ) -> E::ExpandType {
        panic!("{WRITE_ONLY}")
    }

    fn __expand_read_masked_method(
        &self,
        _scope: &mut Scope,
        _pos: <BatchedCoords as CubeType>::ExpandType,
        _value: E::ExpandType,
    ) -> E::ExpandType {
        panic!("{WRITE_ONLY}")
    }

    fn __expand_read_unchecked_method(
        &self,
        _scope: &mut Scope,
        _pos: <BatchedCoords as CubeType>::ExpandType,
    ) -> E::ExpandType {
        panic!("{WRITE_ONLY}")
    }

    fn __expand_to_linear_slice_method(
        &self,
        _scope: &mut Scope,
        _pos: <BatchedCoords as CubeType>::ExpandType,
        _end: <BatchedCoords as CubeType>::ExpandType,
    ) -> SliceExpand<E, ReadOnly> {
        panic!("{WRITE_ONLY}")
    }

    fn __expand_tensor_map_load_method(
        &self,
        _scope: &mut Scope,
        _barrier: BarrierExpand,
        _shared_memory: SliceExpand<E, ReadWrite>,
        _pos: <BatchedCoords as CubeType>::ExpandType,
    ) {
        panic!("{WRITE_ONLY}")
    }

    fn __expand_shape_method(&self, scope: &mut Scope) -> <BatchedCoords as CubeType>::ExpandType {
        self.view.clone().__expand_shape_method(scope)
    }

    fn __expand_is_in_bounds_method(
        &self,
        scope: &mut Scope,
        pos: <BatchedCoords as CubeType>::ExpandType,
    ) -> NativeExpand<bool> {
        self.view.clone().__expand_is_in_bounds_method(scope, pos)
    }
}

impl<E: CubePrimitive<Size = N>, S: Float, N: Size> ViewOperationsMut<E, BatchedCoords>
    for Epilogue<S, N>
{
}
impl<E: CubePrimitive<Size = N>, S: Float, N: Size> ViewOperationsMutExpand<E, BatchedCoords>
    for EpilogueExpand<S, N>
{
    fn __expand_write_method(
        &self,
        scope: &mut Scope,
        pos: <BatchedCoords as CubeType>::ExpandType,
        value: E::ExpandType,
    ) {
        store::expand::<E, S>(scope, self.view.clone(), self.bias.clone(), pos, value);
    }

    fn __expand_write_checked_method(
        &self,
        scope: &mut Scope,
        pos: <BatchedCoords as CubeType>::ExpandType,
        value: E::ExpandType,
    ) {
        let in_bounds = self
            .view
            .clone()
            .__expand_is_in_bounds_method(scope, pos.clone());
        if_expand(scope, in_bounds, |scope| {
            ViewOperationsMutExpand::<E, BatchedCoords>::__expand_write_method(
                self, scope, pos, value,
            );
        });
    }

    fn __expand_to_linear_slice_mut_method(
        &self,
        _scope: &mut Scope,
        _pos: <BatchedCoords as CubeType>::ExpandType,
        _end: <BatchedCoords as CubeType>::ExpandType,
    ) -> SliceExpand<E, ReadWrite> {
        panic!("a product writes its results one vector at a time")
    }

    fn __expand_tensor_map_store_method(
        &self,
        _scope: &mut Scope,
        _shared_memory: SliceExpand<E, ReadOnly>,
        _pos: <BatchedCoords as CubeType>::ExpandType,
    ) {
        panic!("a product writes its results one vector at a time")
    }
}

#[cube]
fn epilogue_of<E: CubePrimitive, S: Float>(
    output: Output<S, E::Size>,
) -> View<E, BatchedCoords, ReadWrite> {
    let layout = Same {
        shape: output.view.shape(),
    };
    let mut epilogue = Epilogue::<S, E::Size> {
        view: output.view,
        bias: output.bias,
    };
    View::new_mut::<Epilogue<S, E::Size>, BatchedCoords>(&mut epilogue, layout)
}

/// Declares arguments of a product whose results are stored as `S`.
macro_rules! args {
    ($(#[$doc:meta])* $name:ident, |$lhs:ident, $rhs:ident, $out:ident| $inputs:ty, |$state:ident, $batch:ident| $lhs_batch:expr, $rhs_batch:expr) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub(super) struct $name<S: Float> {
            _stored: PhantomData<S>,
        }

        #[cube]
        impl<S: Float> MatmulArgs for $name<S> {
            type Input<$lhs: CubePrimitive, $rhs: CubePrimitive, $out: CubePrimitive> = $inputs;
            type Output<EO: CubePrimitive> = Output<S, EO::Size>;
            type Config = ();
            type State<$lhs: CubePrimitive, $rhs: CubePrimitive, $out: CubePrimitive> =
                ($inputs, Output<S, $out::Size>);

            fn init_state<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
                input: &Self::Input<Lhs, Rhs, EO>,
                output: &mut Self::Output<EO>,
                _config: Self::Config,
                #[comptime] _lhs_layout_config: GlobalLayoutConfig,
                #[comptime] _rhs_layout_config: GlobalLayoutConfig,
                #[comptime] _out_layout_config: GlobalLayoutConfig,
            ) -> Self::State<Lhs, Rhs, EO> {
                (*input, *output)
            }

            fn view_lhs<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
                state: &Self::State<Lhs, Rhs, EO>,
            ) -> View<Lhs, BatchedCoords> {
                state.0.lhs
            }

            fn batch_lhs<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
                $state: &Self::State<Lhs, Rhs, EO>,
                $batch: usize,
            ) -> usize {
                $lhs_batch
            }

            fn view_rhs<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
                state: &Self::State<Lhs, Rhs, EO>,
            ) -> View<Rhs, BatchedCoords> {
                state.0.rhs
            }

            fn batch_rhs<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
                $state: &Self::State<Lhs, Rhs, EO>,
                $batch: usize,
            ) -> usize {
                $rhs_batch
            }

            fn view_acc<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
                _state: &Self::State<Lhs, Rhs, EO>,
            ) -> ComptimeOption<View<EO, BatchedCoords>> {
                ComptimeOption::new_None()
            }

            fn batch_acc<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
                _state: &Self::State<Lhs, Rhs, EO>,
                batch: usize,
            ) -> usize {
                batch
            }

            fn view_out<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
                state: &mut Self::State<Lhs, Rhs, EO>,
            ) -> View<EO, BatchedCoords, ReadWrite> {
                epilogue_of::<EO, S>(state.1)
            }

            fn batch_out<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
                state: &Self::State<Lhs, Rhs, EO>,
                batch: usize,
            ) -> usize {
                state.1.batch.to_source_pos(batch)
            }

            fn runtime_config<Lhs: CubePrimitive, Rhs: CubePrimitive, EO: CubePrimitive>(
                _state: &Self::State<Lhs, Rhs, EO>,
            ) -> Self::Config {
            }
        }
    };
}

args!(
    /// Operands that are read through their strides.
    StridedArgs,
    |Lhs, Rhs, EO| StridedInputs<Lhs, Rhs>,
    |state, batch| state.0.lhs_batch.to_source_pos(batch), state.0.rhs_batch.to_source_pos(batch)
);
args!(
    /// Operands that the tensor memory accelerator reads; it copies bytes and casts nothing.
    TmaArgs,
    |Lhs, Rhs, EO| TensorMapInputs<Lhs, Rhs, EO>,
    |_state, batch| batch, batch
);
