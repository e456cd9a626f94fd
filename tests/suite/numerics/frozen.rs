//! Frozen copies of anything that consists of tensors.

use candle_attention::Result;
use candle_attention::tensor::{Freeze, Frozen, MapTensors};
use candle_core::{Device, Tensor};

#[derive(Clone)]
struct Pair([Tensor; 2], Frozen<Self>);

impl MapTensors for Pair {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self([f(&self.0[0])?, f(&self.0[1])?], Frozen::default()))
    }
}

impl Freeze for Pair {
    fn frozen_state(&mut self) -> &mut Frozen<Self> {
        &mut self.1
    }

    fn pack(&mut self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_tensor_that_is_shared_is_copied_once() {
    let table = Tensor::new(&[1f32, 2.0], &Device::Cpu).unwrap();
    let pair = Pair([table.clone(), table.clone()], Frozen::default());
    let Pair([first, second], _) = pair.freeze(&pair.1).unwrap();
    assert_eq!(first.id(), second.id());
    assert_ne!(first.id(), table.id());
}
