//! What a client asks for: channels, exchanges, queues, consumers, confirms, transactions.
//!
//! Calls with an answer wait for it. [`Connection::publish`], [`Connection::ack`],
//! [`Connection::nack`] and [`Connection::reject`] have none and only encode.

use leveret_amqp::method::{Method, MethodError, basic, channel, confirm, exchange, queue, tx};
use leveret_amqp::table::{RawTable, Table};

use crate::connection::Connection;
use crate::error::Error;
use crate::input::Event;

/// Arguments of `queue.declare`.
#[derive(Clone, Debug, Default)]
pub struct QueueDeclare {
    /// Only look whether the queue is there.
    pub passive: bool,
    /// Survives a restart of the broker.
    pub durable: bool,
    /// Belongs to this connection and goes with it.
    pub exclusive: bool,
    /// Goes with its last consumer.
    pub auto_delete: bool,
    /// `x-` arguments.
    pub arguments: Table,
}

/// Answer to `queue.declare`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDeclared {
    /// The queue's name, chosen by the broker when none was given.
    pub queue: String,
    /// Messages that are ready.
    pub message_count: u32,
    /// Consumers of the queue.
    pub consumer_count: u32,
}

/// Arguments of `exchange.declare`.
#[derive(Clone, Debug, Default)]
pub struct ExchangeDeclare {
    /// Only look whether the exchange is there.
    pub passive: bool,
    /// Survives a restart of the broker.
    pub durable: bool,
    /// Goes with its last binding.
    pub auto_delete: bool,
    /// Publishers may not use it.
    pub internal: bool,
    /// `x-` arguments and `alternate-exchange`.
    pub arguments: Table,
}

/// Arguments of `basic.consume`.
#[derive(Clone, Debug, Default)]
pub struct Consume<'a> {
    /// Name of the consumer, chosen by the broker when empty.
    pub consumer_tag: &'a str,
    /// Deliveries need no ack.
    pub no_ack: bool,
    /// Nobody else may consume from the queue.
    pub exclusive: bool,
    /// `x-` arguments.
    pub arguments: Table,
}

/// A message fetched by `basic.get`.
#[derive(Clone, Debug)]
pub struct Got {
    /// Names the delivery on its channel.
    pub delivery_tag: u64,
    /// It was delivered before.
    pub redelivered: bool,
    /// Exchange it was published to.
    pub exchange: String,
    /// Key it was published with.
    pub routing_key: String,
    /// Messages left that are ready.
    pub message_count: u32,
    /// Properties as on the wire, from the property flags on.
    pub properties: Vec<u8>,
    /// The body.
    pub body: Vec<u8>,
}

macro_rules! answer {
    ($pattern:pat => $value:expr) => {
        |method: &Method<'_>| match method {
            $pattern => Some($value),
            _ => None,
        }
    };
}

impl Connection {
    /// Opens a channel and gives its number.
    pub fn open_channel(&mut self) -> Result<u16, Error> {
        let number = self.free_channel()?;
        let open = channel::Open::default();
        self.call(number, &open, "channel.open", answer!(Method::ChannelOpenOk(_) => ()))?;
        Ok(number)
    }

    /// Closes a channel; its unacked messages go back to their queues.
    pub fn close_channel(&mut self, channel: u16) -> Result<(), Error> {
        let close = channel::Close { reply_code: 200, reply_text: "Goodbye", ..Default::default() };
        self.call(channel, &close, "channel.close", answer!(Method::ChannelCloseOk(_) => ()))?;
        self.give_back_channel(channel);
        Ok(())
    }

    /// Declares an exchange of the kind `direct`, `fanout`, `topic`, `headers` or a plugin's.
    pub fn exchange_declare(
        &mut self,
        channel: u16,
        exchange: &str,
        kind: &str,
        how: &ExchangeDeclare,
    ) -> Result<(), Error> {
        let table = how.arguments.to_bytes();
        let request = exchange::Declare {
            exchange,
            kind,
            passive: how.passive,
            durable: how.durable,
            auto_delete: how.auto_delete,
            internal: how.internal,
            arguments: raw(&table)?,
            ..Default::default()
        };
        let answer = answer!(Method::ExchangeDeclareOk(_) => ());
        self.call(channel, &request, "exchange.declare", answer)
    }

    /// Deletes an exchange.
    pub fn exchange_delete(
        &mut self,
        channel: u16,
        exchange: &str,
        if_unused: bool,
    ) -> Result<(), Error> {
        let request = exchange::Delete { exchange, if_unused, ..Default::default() };
        let answer = answer!(Method::ExchangeDeleteOk(_) => ());
        self.call(channel, &request, "exchange.delete", answer)
    }

    /// Declares a queue; the empty name lets the broker choose one.
    pub fn queue_declare(
        &mut self,
        channel: u16,
        queue: &str,
        how: &QueueDeclare,
    ) -> Result<QueueDeclared, Error> {
        let table = how.arguments.to_bytes();
        let request = queue::Declare {
            queue,
            passive: how.passive,
            durable: how.durable,
            exclusive: how.exclusive,
            auto_delete: how.auto_delete,
            arguments: raw(&table)?,
            ..Default::default()
        };
        let answer = answer!(Method::QueueDeclareOk(ok) => QueueDeclared {
            queue: ok.queue.into(),
            message_count: ok.message_count,
            consumer_count: ok.consumer_count,
        });
        self.call(channel, &request, "queue.declare", answer)
    }

    /// Binds a queue to an exchange.
    pub fn queue_bind(
        &mut self,
        channel: u16,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &Table,
    ) -> Result<(), Error> {
        let table = arguments.to_bytes();
        let arguments = raw(&table)?;
        let request = queue::Bind { queue, exchange, routing_key, arguments, ..Default::default() };
        self.call(channel, &request, "queue.bind", answer!(Method::QueueBindOk(_) => ()))
    }

    /// Removes a binding.
    pub fn queue_unbind(
        &mut self,
        channel: u16,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &Table,
    ) -> Result<(), Error> {
        let table = arguments.to_bytes();
        let arguments = raw(&table)?;
        let request =
            queue::Unbind { queue, exchange, routing_key, arguments, ..Default::default() };
        self.call(channel, &request, "queue.unbind", answer!(Method::QueueUnbindOk(_) => ()))
    }

    /// Empties a queue of its ready messages and gives their number.
    pub fn queue_purge(&mut self, channel: u16, queue: &str) -> Result<u32, Error> {
        let request = queue::Purge { queue, ..Default::default() };
        let answer = answer!(Method::QueuePurgeOk(ok) => ok.message_count);
        self.call(channel, &request, "queue.purge", answer)
    }

    /// Deletes a queue and gives the number of messages lost with it.
    pub fn queue_delete(&mut self, channel: u16, queue: &str) -> Result<u32, Error> {
        let request = queue::Delete { queue, ..Default::default() };
        let answer = answer!(Method::QueueDeleteOk(ok) => ok.message_count);
        self.call(channel, &request, "queue.delete", answer)
    }

    /// Limits the unacked messages of each consumer started from now on, or with `global` of the
    /// whole channel (RabbitMQ's reading). 0 is no limit.
    pub fn qos(&mut self, channel: u16, prefetch_count: u16, global: bool) -> Result<(), Error> {
        let request = basic::Qos { prefetch_size: 0, prefetch_count, global };
        self.call(channel, &request, "basic.qos", answer!(Method::BasicQosOk(_) => ()))
    }

    /// Starts a consumer and gives its tag. Deliveries come as [`Event::Content`].
    pub fn consume(
        &mut self,
        channel: u16,
        queue: &str,
        how: &Consume<'_>,
    ) -> Result<String, Error> {
        let table = how.arguments.to_bytes();
        let request = basic::Consume {
            queue,
            consumer_tag: how.consumer_tag,
            no_ack: how.no_ack,
            exclusive: how.exclusive,
            arguments: raw(&table)?,
            ..Default::default()
        };
        let answer = answer!(Method::BasicConsumeOk(ok) => ok.consumer_tag.to_owned());
        self.call(channel, &request, "basic.consume", answer)
    }

    /// Ends a consumer. Deliveries under way still come.
    pub fn cancel(&mut self, channel: u16, consumer_tag: &str) -> Result<(), Error> {
        let request = basic::Cancel { consumer_tag, no_wait: false };
        self.call(channel, &request, "basic.cancel", answer!(Method::BasicCancelOk(_) => ()))
    }

    /// Fetches one message; `None` when the queue is empty.
    pub fn get(&mut self, channel: u16, queue: &str, no_ack: bool) -> Result<Option<Got>, Error> {
        self.output.put_method(channel, &basic::Get { queue, no_ack, ..Default::default() });
        self.flush()?;
        self.answer_event("basic.get", |event| match event {
            Event::Method { channel: of, method: Method::BasicGetEmpty(_) } if *of == channel => {
                Some(None)
            }
            Event::Content { channel: of, method: Method::BasicGetOk(ok), properties, body }
                if *of == channel =>
            {
                Some(Some(Got {
                    delivery_tag: ok.delivery_tag,
                    redelivered: ok.redelivered,
                    exchange: ok.exchange.into(),
                    routing_key: ok.routing_key.into(),
                    message_count: ok.message_count,
                    properties: properties.as_bytes().to_vec(),
                    body: body.to_vec(),
                }))
            }
            _ => None,
        })
    }

    /// Puts all unacked messages of the channel back into their queues.
    pub fn recover(&mut self, channel: u16, requeue: bool) -> Result<(), Error> {
        let request = basic::Recover { requeue };
        self.call(channel, &request, "basic.recover", answer!(Method::BasicRecoverOk(_) => ()))
    }

    /// Switches publisher confirms on. They come as [`Event::Method`]; tags count from 1.
    pub fn confirm_select(&mut self, channel: u16) -> Result<(), Error> {
        let request = confirm::Select { no_wait: false };
        self.call(channel, &request, "confirm.select", answer!(Method::ConfirmSelectOk(_) => ()))
    }

    /// Makes the channel transactional.
    pub fn tx_select(&mut self, channel: u16) -> Result<(), Error> {
        let answer = answer!(Method::TxSelectOk(_) => ());
        self.call(channel, &tx::Select, "tx.select", answer)
    }

    /// Makes the channel's publishes and acks since the last commit count.
    pub fn tx_commit(&mut self, channel: u16) -> Result<(), Error> {
        let answer = answer!(Method::TxCommitOk(_) => ());
        self.call(channel, &tx::Commit, "tx.commit", answer)
    }

    /// Forgets the channel's publishes and acks since the last commit.
    pub fn tx_rollback(&mut self, channel: u16) -> Result<(), Error> {
        let answer = answer!(Method::TxRollbackOk(_) => ());
        self.call(channel, &tx::Rollback, "tx.rollback", answer)
    }

    /// Encodes a publish. `properties` are the header's bytes from the property flags on; two zero
    /// bytes are "none".
    pub fn publish(
        &mut self,
        channel: u16,
        exchange: &str,
        routing_key: &str,
        properties: &[u8],
        body: &[u8],
    ) {
        let publish = basic::Publish { exchange, routing_key, ..Default::default() };
        self.output.put_publish(channel, &publish, properties, body);
    }

    /// Encodes an ack.
    pub fn ack(&mut self, channel: u16, delivery_tag: u64, multiple: bool) {
        self.output.put_method(channel, &basic::Ack { delivery_tag, multiple });
    }

    /// Encodes a nack, RabbitMQ's reject for many.
    pub fn nack(&mut self, channel: u16, delivery_tag: u64, multiple: bool, requeue: bool) {
        self.output.put_method(channel, &basic::Nack { delivery_tag, multiple, requeue });
    }

    /// Encodes a reject.
    pub fn reject(&mut self, channel: u16, delivery_tag: u64, requeue: bool) {
        self.output.put_method(channel, &basic::Reject { delivery_tag, requeue });
    }
}

fn raw(bytes: &[u8]) -> Result<RawTable<'_>, Error> {
    Ok(RawTable::new(bytes).map_err(MethodError::from)?)
}
