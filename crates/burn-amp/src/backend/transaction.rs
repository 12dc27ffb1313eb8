use burn::tensor::TransactionPrimitive;
use burn::tensor::backend::ExecutionError;
use burn::tensor::ops::{TransactionOps, TransactionPrimitiveData};

use super::float::read_back;
use super::{Amp, AmpBackend};
use crate::counters;

impl<B: AmpBackend> TransactionOps<Self> for Amp<B> {
    fn tr_execute(
        transaction: TransactionPrimitive<Self>,
    ) -> impl Future<Output = Result<TransactionPrimitiveData, ExecutionError>> + Send {
        counters::count_read();
        B::tr_execute(TransactionPrimitive::new(
            transaction
                .read_floats
                .into_iter()
                .map(read_back::<B>)
                .collect(),
            transaction.read_qfloats,
            transaction.read_ints,
            transaction.read_bools,
        ))
    }
}
