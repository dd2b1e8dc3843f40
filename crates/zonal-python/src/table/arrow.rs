//! Exports tables through the Arrow C stream interface.
//!
//! A stream has one record batch. Integers are `int64` or `uint64`, numbers `float64`, texts `utf8`, truth values
//! `bool`; all columns are nullable. Related files: `table/python.rs` passes streams to Python.

use std::sync::Arc;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchOptions,
    StringArray, UInt64Array,
};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, Schema};

use super::{Table, Values};

impl Values {
    fn data_type(&self) -> DataType {
        match self {
            Self::I64(_) => DataType::Int64,
            Self::U64(_) => DataType::UInt64,
            Self::F64(_) => DataType::Float64,
            Self::Text(_) => DataType::Utf8,
            Self::Bool(_) => DataType::Boolean,
        }
    }

    fn array(&self) -> ArrayRef {
        match self {
            Self::I64(values) => Arc::new(Int64Array::from(values.clone())),
            Self::U64(values) => Arc::new(UInt64Array::from(values.clone())),
            Self::F64(values) => Arc::new(Float64Array::from(values.clone())),
            Self::Text(values) => Arc::new(StringArray::from(values.clone())),
            Self::Bool(values) => Arc::new(BooleanArray::from(values.clone())),
        }
    }
}

impl Table {
    fn schema(&self) -> Schema {
        let columns = self.columns.iter();
        Schema::new(
            columns
                .map(|column| Field::new(&column.name, column.values.data_type(), true))
                .collect::<Vec<_>>(),
        )
    }

    /// Returns the schema for other libraries.
    pub(super) fn to_schema(&self) -> Result<FFI_ArrowSchema, ArrowError> {
        FFI_ArrowSchema::try_from(&self.schema())
    }

    /// Returns the table as a stream of one batch.
    pub(super) fn to_stream(&self) -> Result<FFI_ArrowArrayStream, ArrowError> {
        let schema = Arc::new(self.schema());
        let arrays = self.columns.iter().map(|column| column.values.array()).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows()));
        let batch = RecordBatch::try_new_with_options(schema.clone(), arrays, &options)?;
        let batches = RecordBatchIterator::new([Ok(batch)], schema);
        Ok(FFI_ArrowArrayStream::new(Box::new(batches)))
    }
}
