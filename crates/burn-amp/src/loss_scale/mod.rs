//! Loss scaling: the state machine and its settings. No tensors here.
