//! Products through the routines of cubek.
//!
//! A routine chooses its tiles for operands in the compute type. Then it is told the types that the
//! operands really have, and what it loads into its tiles is cast on the way.

use cubecl::features::Tma;
use cubecl::ir::StorageType;
use cubecl::prelude::*;
use cubecl::std::tensor::launch::ViewArg;
use cubecl::std::tensor::layout::VirtualLayoutLaunch;
use cubecl::std::tensor::layout::plain::PlainLayout;
use cubek::matmul::components::global::memory::{
    BatchLayout, BatchLayoutLaunch, GlobalLayout, GlobalLayoutConfig, GlobalLayoutLaunch,
};
use cubek::matmul::components::tile::TileMatmulKind;
use cubek::matmul::definition::{
    AvailableVectorSizes, Blueprint as _, MatmulAvailabilityError, MatmulElems, MatmulGlobalElems,
    MatmulProblem, MatmulSetupError, MatmulVectorSizes,
};
use cubek::matmul::launch::{
    ConcreteInputsFactory, InputArg, MatmulArgs, OutputRuntimeArg, launch_kernel,
};
use cubek::matmul::routines::double_buffering::{
    CyclicDoubleBufferingAlgorithm, DoubleBufferingArgs,
};
use cubek::matmul::routines::ordered_double_buffering::{
    OrderedDoubleBufferingAlgorithm, OrderedSelectionArgs,
};
use cubek::matmul::routines::simple::{SimpleAlgorithm, SimpleArgs, SimpleTmaAlgorithm};
use cubek::matmul::routines::simple_unit::SimpleUnitAlgorithm;
use cubek::matmul::routines::specialized::{SpecializedAlgorithm, SpecializedStrategy};
use cubek::matmul::routines::{BlueprintStrategy, LaunchInfo, Routine as Algorithm};
use cubek::std::InputBinding;

use super::epilogue::{OutputLaunch, StridedArgs, StridedInputsLaunch, TmaArgs};
use super::{Product, Routine, Tile, loadable};
use crate::{DeviceTensor, FloatType, KernelError};

/// The operands have the rank of the output.
pub(super) fn launch<R: Runtime>(
    client: &ComputeClient<R>,
    product: &Product,
    output: &DeviceTensor,
    routine: Routine,
) -> Result<(), KernelError> {
    let launched = match output.dtype {
        FloatType::F32 => launch_storing::<R, f32>(client, product, output, routine),
        FloatType::F16 => launch_storing::<R, half::f16>(client, product, output, routine),
        FloatType::BF16 => launch_storing::<R, half::bf16>(client, product, output, routine),
    };
    launched.map_err(|error| KernelError::Matmul {
        strategy: routine.to_string(),
        reason: error.to_string().trim().to_owned(),
    })
}

fn launch_storing<R: Runtime, S: Float>(
    client: &ComputeClient<R>,
    product: &Product,
    output: &DeviceTensor,
    routine: Routine,
) -> Result<(), MatmulSetupError> {
    let product = &Product {
        lhs: loadable(client, &product.lhs),
        rhs: loadable(client, &product.rhs),
        ..product.clone()
    };
    let launch = Launch {
        client,
        product,
        output,
    };
    match routine {
        Routine::Unit => launch.strided::<S, SimpleUnitAlgorithm>(Default::default()),
        Routine::Simple { tile, multi_rows } => {
            launch.strided::<S, SimpleAlgorithm>(BlueprintStrategy::Inferred(SimpleArgs {
                tile_matmul: tile.kind(),
                multi_rows,
            }))
        }
        Routine::DoubleBuffered { tile, specialized } => launch
            .strided::<S, CyclicDoubleBufferingAlgorithm>(BlueprintStrategy::Inferred(
                DoubleBufferingArgs {
                    tile_matmul: tile.kind(),
                    specialized,
                },
            )),
        Routine::Ordered { tile, rows } => launch.strided::<S, OrderedDoubleBufferingAlgorithm>(
            BlueprintStrategy::Inferred(OrderedSelectionArgs {
                tile_matmul: tile.kind(),
                partition_k: Some(2),
                row_count: Some(rows),
                rows_per_plane: Some(2),
            }),
        ),
        Routine::Tma { tile, multi_rows } => {
            launch.by_tma::<S, SimpleTmaAlgorithm>(BlueprintStrategy::Inferred(SimpleArgs {
                tile_matmul: tile.kind(),
                multi_rows,
            }))
        }
        Routine::SpecializedTma { tile } => launch.by_tma::<S, SpecializedAlgorithm>(
            BlueprintStrategy::Inferred(SpecializedStrategy {
                tile_matmul: tile.kind(),
            }),
        ),
    }
}

impl Tile {
    fn kind(self) -> TileMatmulKind {
        match self {
            Self::Cmma => TileMatmulKind::Cmma,
            Self::Mma => TileMatmulKind::Mma,
        }
    }
}

struct Launch<'a, R: Runtime> {
    client: &'a ComputeClient<R>,
    product: &'a Product,
    output: &'a DeviceTensor,
}

impl<R: Runtime> Launch<'_, R> {
    fn strided<S: Float, A: Algorithm<()>>(
        &self,
        strategy: BlueprintStrategy<(), A>,
    ) -> Result<(), MatmulSetupError> {
        let [lhs, rhs] = [&self.product.lhs, &self.product.rhs];
        let sizes = AvailableVectorSizes::from_type_sizes(
            self.client,
            lhs.dtype.size(),
            rhs.dtype.size(),
            size_of::<f32>(),
        );
        let (problem, info) = self.plan::<A>(sizes, &strategy)?;
        let view = |tensor: &DeviceTensor, vector, config: GlobalLayoutConfig| {
            let binding = tensor.binding::<R>();
            let layout = GlobalLayoutLaunch::from_handle(&binding, vector, config);
            ViewArg::new_tensor::<GlobalLayout>(binding.into_tensor_arg(), layout)
        };
        let inputs = StridedInputsLaunch::new(
            view(
                lhs,
                info.vector_sizes.lhs,
                info.blueprint.lhs_global_layout_config(),
            ),
            self.batches(lhs, &problem),
            view(
                rhs,
                info.vector_sizes.rhs,
                info.blueprint.rhs_global_layout_config(),
            ),
            self.batches(rhs, &problem),
        );
        let output = self.output_arg::<S, StridedArgs<S>, A>(&problem, &info);
        launch_kernel::<StridedArgs<S>, R, A>(self.client, inputs, output, (), info)
    }

    fn by_tma<S: Float, A: Algorithm<()>>(
        &self,
        strategy: BlueprintStrategy<(), A>,
    ) -> Result<(), MatmulSetupError>
    where
        InputArg<TmaArgs<S>>: ConcreteInputsFactory<A>,
    {
        // cubek looks only when the kernel is compiled, which is after the launch.
        let features = self.client.features();
        if !features.tma.contains(Tma::Base) {
            return Err(MatmulSetupError::Unavailable(
                MatmulAvailabilityError::TmaUnavailable,
            ));
        }
        if !self.product.is_in_compute_type() {
            return Err(MatmulSetupError::InvalidConfig(Box::new(
                "the tensor memory accelerator casts nothing",
            )));
        }
        let sizes = AvailableVectorSizes::from_type_size_tma(self.client, size_of::<f32>());
        let (problem, info) = self.plan::<A>(sizes, &strategy)?;
        let input =
            |tensor: &DeviceTensor| InputBinding::new(tensor.binding::<R>(), tensor.dtype.into());
        let inputs = <InputArg<TmaArgs<S>> as ConcreteInputsFactory<A>>::create(
            input(&self.product.lhs),
            input(&self.product.rhs),
            &info.blueprint,
            &problem,
            &info.vector_sizes,
            &info.dtypes,
        );
        let output = self.output_arg::<S, TmaArgs<S>, A>(&problem, &info);
        launch_kernel::<TmaArgs<S>, R, A>(self.client, inputs, output, (), info)
    }

    fn plan<A: Algorithm<()>>(
        &self,
        sizes: AvailableVectorSizes,
        strategy: &BlueprintStrategy<(), A>,
    ) -> Result<(MatmulProblem, LaunchInfo<A::Blueprint>), MatmulSetupError> {
        let [lhs, rhs] = [&self.product.lhs, &self.product.rhs];
        let dtypes = types(self.product);
        let address_type = [lhs, rhs, self.output]
            .map(DeviceTensor::address_type::<R>)
            .into_iter()
            .max()
            .unwrap_or_default();
        let problem = MatmulProblem::from_shapes_and_strides(
            lhs.shape.clone(),
            rhs.shape.clone(),
            self.output.shape.clone(),
            lhs.strides.clone(),
            rhs.strides.clone(),
            self.output.strides.clone(),
            dtypes.as_global_elems(),
            address_type,
            None,
            None,
        )?;
        let sizes: MatmulVectorSizes = sizes
            .filter_lhs_with_tensor(&problem.lhs_strides, &problem.lhs_shape, problem.lhs_layout)
            .filter_rhs_with_tensor(&problem.rhs_strides, &problem.rhs_shape, problem.rhs_layout)
            .filter_out_with_tensor(&problem.out_strides, &problem.out_shape)
            .pick_max()?;
        let settings = A::device_settings(self.client, sizes);
        let mut in_compute_type = problem.clone();
        in_compute_type.global_dtypes = MatmulGlobalElems {
            lhs: dtypes.lhs_register,
            rhs: dtypes.rhs_register,
            out: dtypes.acc_global,
        };
        let mut expanded = A::expand_blueprint(&in_compute_type, &settings, strategy)?;
        expanded.dtypes = dtypes;
        let info = A::prepare(&problem, &settings, expanded)?;
        Ok((problem, info))
    }

    fn batches(
        &self,
        tensor: &DeviceTensor,
        problem: &MatmulProblem,
    ) -> VirtualLayoutLaunch<usize, usize, R> {
        let layout = BatchLayoutLaunch::from_handle(&tensor.binding(), problem);
        VirtualLayoutLaunch::new::<BatchLayout>(layout)
    }

    fn output_arg<S: Float, MA, A: Algorithm<()>>(
        &self,
        problem: &MatmulProblem,
        info: &LaunchInfo<A::Blueprint>,
    ) -> OutputRuntimeArg<MA, R>
    where
        MA: MatmulArgs,
        OutputRuntimeArg<MA, R>: From<OutputLaunch<S, cubek::matmul::launch::AccSize, R>>,
    {
        let binding = self.output.binding::<R>();
        let layout = GlobalLayoutLaunch::from_handle(
            &binding,
            info.vector_sizes.out,
            info.blueprint.out_global_layout_config(),
        );
        let bias = match &self.product.bias {
            Some(bias) => {
                ComptimeOptionArgs::Some(ViewArg::new_array::<PlainLayout>(bias.array(), ()))
            }
            None => ComptimeOptionArgs::None,
        };
        OutputLaunch::new(
            ViewArg::new_tensor::<GlobalLayout>(binding.into_tensor_arg(), layout),
            self.batches(self.output, problem),
            bias,
        )
        .into()
    }
}

/// Results are f32 to the routine; the epilogue rounds them.
fn types(product: &Product) -> MatmulElems {
    let compute: StorageType = product.compute.into();
    let sum: StorageType = FloatType::F32.into();
    MatmulElems {
        lhs_global: product.lhs.dtype.into(),
        rhs_global: product.rhs.dtype.into(),
        acc_global: sum,
        lhs_stage: compute,
        rhs_stage: compute,
        acc_stage: sum,
        lhs_register: compute,
        rhs_register: compute,
        acc_register: sum,
    }
}
