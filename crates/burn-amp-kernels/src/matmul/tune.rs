//! Times the ways to run a kind of product, once, and remembers the fastest.

use std::fmt;

use cubecl::prelude::*;
use cubecl::tune::{LocalTuner, Tunable, TunableSet, TuneGroup, local_tuner};
use cubek::matmul::definition::MatmulKind;
use cubek::matmul::launch::{MatmulAutotuneKey, MatmulGlobalScale};
use serde::{Deserialize, Serialize};

use super::strategy::{Routine, Strategy, Tile};
use super::{Product, with_routine};
use crate::{DeviceTensor, FloatType};

/// What products have in common that are run the same way: all types, layouts, and sizes up to rounding.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Key {
    product: MatmulAutotuneKey,
    compute: FloatType,
    has_bias: bool,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl cubecl::tune::AutotuneKey for Key {}

/// A kind of device: what was measured holds for all with the same properties.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct DeviceKind {
    runtime: &'static str,
    properties: u64,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:x}", self.runtime, self.properties)
    }
}

#[derive(Clone)]
struct Input<R: Runtime> {
    client: ComputeClient<R>,
    product: Product,
    output: DeviceTensor,
}

pub(super) fn launch<R: Runtime>(
    client: &ComputeClient<R>,
    product: &Product,
    output: &DeviceTensor,
) {
    static TUNER: LocalTuner<Key, DeviceKind> = local_tuner!();

    let device = DeviceKind {
        runtime: R::name(client),
        properties: client.properties().checksum(),
    };
    let input = Input {
        client: client.clone(),
        product: product.clone(),
        output: output.clone(),
    };
    TUNER.execute(&device, client, TUNER.init(candidates::<R>), input);
}

fn key_of<R: Runtime>(input: &Input<R>) -> Key {
    let Product { lhs, rhs, bias, .. } = &input.product;
    Key {
        product: MatmulAutotuneKey::generate(
            &input.client,
            &lhs.shape,
            &rhs.shape,
            &lhs.strides,
            &rhs.strides,
            lhs.dtype.into(),
            rhs.dtype.into(),
            input.output.dtype.into(),
            None,
            None,
        ),
        compute: input.product.compute,
        has_bias: bias.is_some(),
    }
}

/// Candidates write to an output of their own.
fn input_to_time<R: Runtime>(_key: &Key, input: &Input<R>) -> Input<R> {
    Input {
        output: DeviceTensor::empty(
            &input.client,
            input.output.shape.clone(),
            input.output.dtype,
        ),
        ..input.clone()
    }
}

const FIRST: i8 = 2;
const SECOND: i8 = 1;
const LAST: i8 = 0;
const NEVER: i8 = -1;

/// Operands in the compute type need no cast, so that two ways to do without one are the same.
fn is_in_compute_type(key: &Key) -> bool {
    let types = &key.product.definition;
    let compute = key.compute.into();
    types.elem_lhs == compute && types.elem_rhs == compute
}

fn is_small(key: &Key) -> bool {
    !matches!(key.product.analysis.kind, MatmulKind::General)
        || matches!(key.product.analysis.scale_global, MatmulGlobalScale::Small)
}

fn candidates<R: Runtime>() -> TunableSet<Key, Input<R>, ()> {
    let accelerated = TuneGroup::<Key>::new("tensor cores", |_| FIRST);
    let units = TuneGroup::<Key>::new("units", |key| if is_small(key) { FIRST } else { SECOND });
    let anywhere =
        TuneGroup::<Key>::new("anywhere", |key| if is_small(key) { FIRST } else { LAST });

    let tunable = |strategy: Strategy| {
        Tunable::new(&strategy.to_string(), move |input: Input<R>| {
            with_routine(&input.client, &input.product, &input.output, strategy)
                .map_err(|error| error.to_string())
        })
    };
    // The first is what is left if nothing else can run.
    let mut set = TunableSet::new(key_of::<R>, input_to_time::<R>)
        .with(tunable(Strategy::Naive).group(&anywhere, |_| FIRST))
        .with(tunable(Strategy::Fused(Routine::Unit)).group(&units, |_| FIRST));
    for tile in [Tile::Mma, Tile::Cmma] {
        let strided = [
            Routine::Simple {
                tile,
                multi_rows: false,
            },
            Routine::Simple {
                tile,
                multi_rows: true,
            },
            Routine::Ordered { tile, rows: 8 },
            Routine::DoubleBuffered {
                tile,
                specialized: false,
            },
        ];
        for routine in strided {
            let fused = tunable(Strategy::Fused(routine)).group(&accelerated, |_| FIRST);
            set = set.with(fused);
        }
        // Casting before pays where a better routine takes over then, and in the others if values are
        // loaded many times.
        let after_cast = [
            Routine::Ordered { tile, rows: 8 },
            Routine::DoubleBuffered {
                tile,
                specialized: false,
            },
        ];
        for routine in after_cast {
            let cast = tunable(Strategy::CastThen(routine)).group(&accelerated, |key| {
                if is_in_compute_type(key) || is_small(key) {
                    NEVER
                } else {
                    FIRST
                }
            });
            set = set.with(cast);
        }
        let by_tma = [
            Routine::Tma {
                tile,
                multi_rows: true,
            },
            Routine::SpecializedTma { tile },
        ];
        for routine in by_tma {
            let by_tma = tunable(Strategy::CastThen(routine)).group(&accelerated, |key| {
                if is_small(key) { NEVER } else { FIRST }
            });
            set = set.with(by_tma);
        }
    }
    set
}
