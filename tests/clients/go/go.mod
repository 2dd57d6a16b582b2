module leveret/clients

go 1.20

require github.com/streadway/amqp v1.1.0
