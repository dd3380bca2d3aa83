// Exchange sends messages with the stock Go client and consumes them with two push consumers.
//
//	exchange NAMESRV TOPIC COUNT
//	exchange NAMESRV TOPIC read
//
// It sends COUNT messages in each way of the client: sync, async, oneway and batch. One group consumes
// all of them, another those with the tag "sync". What was stored and what came is printed as one JSON
// document: {"stored": N, "all": [...], "tagged": [...]}. With "read" it prints the body of each message on
// a line of its own, until its input ends.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const patience = 40 * time.Second

// Arrived is a message as a consumer got it.
type Arrived struct {
	Body string `json:"body"`
	Tags string `json:"tags"`
	Keys string `json:"keys"`
}

// Handler gets messages.
type Handler = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

// Inbox collects what one consumer gets.
type Inbox struct {
	mutex   sync.Mutex
	arrived []Arrived
}

func (inbox *Inbox) take(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	inbox.mutex.Lock()
	defer inbox.mutex.Unlock()
	for _, message := range messages {
		inbox.arrived = append(inbox.arrived,
			Arrived{string(message.Body), message.GetTags(), message.GetKeys()})
	}
	return consumer.ConsumeSuccess, nil
}

func (inbox *Inbox) seen() []Arrived {
	inbox.mutex.Lock()
	defer inbox.mutex.Unlock()
	return append([]Arrived{}, inbox.arrived...)
}

func (inbox *Inbox) wait(count int, deadline time.Time) {
	for len(inbox.seen()) < count && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
}

func main() {
	rlog.SetLogLevel("error")
	if os.Args[3] == "read" {
		if err := read(os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	count, err := strconv.Atoi(os.Args[3])
	if err == nil {
		err = exchange(os.Args[1], os.Args[2], count)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func exchange(namesrv, topic string, count int) error {
	stored, err := send(namesrv, topic, count)
	if err != nil {
		return err
	}
	all, tagged := &Inbox{}, &Inbox{}
	deadline := time.Now().Add(patience)
	everything := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	first, err := consume(namesrv, topic, topic+"-all", everything, all.take)
	if err != nil {
		return err
	}
	some := consumer.MessageSelector{Type: consumer.TAG, Expression: "sync || nothing"}
	second, err := consume(namesrv, topic, topic+"-tagged", some, tagged.take)
	if err != nil {
		return err
	}
	all.wait(4*count, deadline)
	tagged.wait(count, deadline)
	for _, each := range []rocketmq.PushConsumer{first, second} {
		if err := each.Shutdown(); err != nil {
			return err
		}
	}
	told := map[string]any{"stored": stored, "all": all.seen(), "tagged": tagged.seen()}
	return json.NewEncoder(os.Stdout).Encode(told)
}

func show(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	for _, message := range messages {
		fmt.Println(string(message.Body))
	}
	return consumer.ConsumeSuccess, nil
}

func read(namesrv, topic string) error {
	everything := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	receiver, err := consume(namesrv, topic, topic+"-go", everything, show)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return receiver.Shutdown()
}

func message(topic, way string, number int) *primitive.Message {
	message := primitive.NewMessage(topic, []byte(fmt.Sprintf("%s 消息 %d", way, number)))
	message.WithTag(way)
	message.WithKeys([]string{fmt.Sprintf("%s-%d", way, number)})
	return message
}

// send returns how many messages the broker said it has stored; it is silent about oneway ones.
func send(namesrv, topic string, count int) (int, error) {
	sender, err := rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{namesrv})),
		producer.WithGroupName(topic+"-producers"),
		producer.WithSendMsgTimeout(10*time.Second),
		producer.WithRetry(0),
	)
	if err != nil {
		return 0, err
	}
	if err := sender.Start(); err != nil {
		return 0, err
	}
	ctx, stored := context.Background(), 0
	answers := make(chan error, count)
	batch := []*primitive.Message{}
	for i := 0; i < count; i++ {
		result, err := sender.SendSync(ctx, message(topic, "sync", i))
		if err != nil {
			return stored, err
		}
		if result.Status == primitive.SendOK {
			stored++
		}
		told := func(_ context.Context, result *primitive.SendResult, err error) {
			if err == nil && result.Status != primitive.SendOK {
				err = fmt.Errorf("async send: status %d", result.Status)
			}
			answers <- err
		}
		if err := sender.SendAsync(ctx, told, message(topic, "async", i)); err != nil {
			return stored, err
		}
		if err := sender.SendOneWay(ctx, message(topic, "oneway", i)); err != nil {
			return stored, err
		}
		batch = append(batch, message(topic, "batch", i))
	}
	result, err := sender.SendSync(ctx, batch...)
	if err != nil {
		return stored, err
	}
	if result.Status == primitive.SendOK {
		stored += count
	}
	for i := 0; i < count; i++ {
		if err := <-answers; err != nil {
			return stored, err
		}
		stored++
	}
	return stored, sender.Shutdown()
}

func consume(
	namesrv, topic, group string, selector consumer.MessageSelector, handle Handler,
) (rocketmq.PushConsumer, error) {
	receiver, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{namesrv})),
		consumer.WithGroupName(group),
		consumer.WithInstance(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return nil, err
	}
	if err := receiver.Subscribe(topic, selector, handle); err != nil {
		return nil, err
	}
	return receiver, receiver.Start()
}
